import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs command-line tools one after the other, as if each had a JVM of its own: the start of one
 * takes longer than most of what they do.
 *
 * A line of input is a tool: its class, the text that is typed in and its arguments, each in
 * Base64 and with a "." in front, separated by spaces. The answer is a line: status, what was
 * written to standard output, what was written to standard error.
 */
public class Tools {
    /** Thrown where the process would have ended. Tools catch it; what they do then does not count. */
    private static class Ended extends Error {
        Ended() {
            super("this tool has ended", null, false, false);
        }
    }

    /** What is written, but for the time after the end. */
    private static class Paper extends ByteArrayOutputStream {
        @Override
        public synchronized void write(int each) {
            if (status == null) super.write(each);
        }

        @Override
        public synchronized void write(byte[] bytes, int from, int length) {
            if (status == null) super.write(bytes, from, length);
        }
    }

    private static volatile Integer status;

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((with, message) -> end(with));
        Exit.setHaltProcedure((with, message) -> end(with));
        Set<Thread> ofOthers = Set.copyOf(hooks().keySet());
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            List<byte[]> words = new ArrayList<>();
            for (String word : order.split(" ")) words.add(Base64.getDecoder().decode(word.substring(1)));
            answers.println(run(words, ofOthers));
            answers.flush();
        }
    }

    private static synchronized void end(int with) {
        if (status == null) status = with;
        throw new Ended();
    }

    private static String run(List<byte[]> words, Set<Thread> ofOthers) throws Exception {
        InputStream in = System.in;
        PrintStream out = System.out, err = System.err;
        Paper said = new Paper(), complained = new Paper();
        System.setIn(new ByteArrayInputStream(words.get(1)));
        System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        status = null;
        try {
            int ended = start(words);
            status = null;  // hooks are heard again
            for (Thread hook : List.copyOf(hooks().keySet())) {
                if (ofOthers.contains(hook)) continue;
                hooks().remove(hook);
                hook.start();
                hook.join();
            }
            return ended + " " + word(said) + " " + word(complained);
        } finally {
            System.setIn(in);
            System.setOut(out);
            System.setErr(err);
        }
    }

    /** What is to be done when the JVM ends; there is no other way to it. */
    @SuppressWarnings("unchecked")
    private static Map<Thread, Thread> hooks() throws Exception {
        Field hooks = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        hooks.setAccessible(true);
        return (Map<Thread, Thread>) hooks.get(null);
    }

    private static int start(List<byte[]> words) throws Exception {
        String[] arguments = new String[words.size() - 2];
        for (int i = 0; i < arguments.length; i++) arguments[i] = text(words.get(i + 2));
        try {
            Class.forName(text(words.get(0))).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (status == null) {
                thrown.getCause().printStackTrace();
                status = 1;
            }
        }
        System.out.flush();
        System.err.flush();
        return status == null ? 0 : status;
    }

    private static String text(byte[] word) {
        return new String(word, StandardCharsets.UTF_8);
    }

    private static String word(ByteArrayOutputStream bytes) {
        return "." + Base64.getEncoder().encodeToString(bytes.toByteArray());
    }
}
