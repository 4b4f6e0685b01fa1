// What clients that others wrote in Go ask of a broker, and what they are answered: one JSON object
// a line, {"step": ..., "saw": ...}.
//
//	clients franz-go|sarama|kafka-go BOOTSTRAP PREFIX
//
// All names of topics, groups and transactions begin with PREFIX. One program holds all clients,
// since it takes far longer to build than to run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	patience = 15 * time.Second
	pause    = 20 * time.Millisecond
	// Log directories tell sizes, and the time of a record is part of its size.
	firstTimestamp = 1_700_000_000_000
)

var clients = map[string]func(run){
	"franz-go": franzGo,
	"sarama":   saramaAdmin,
	"kafka-go": kafkaGo,
}

type run struct {
	ctx       context.Context
	bootstrap string
	prefix    string
}

type row = map[string]any

func main() {
	if len(os.Args) != 4 || clients[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: clients franz-go|sarama|kafka-go BOOTSTRAP PREFIX")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 80*time.Second)
	defer cancel()
	clients[os.Args[1]](run{ctx, os.Args[2], os.Args[3]})
}

func (r run) name(label string) string { return r.prefix + label }

// mine are those of the broker's names that this run made, in order.
func (r run) mine(names []string) []string {
	found := []string{}
	for _, each := range names {
		if strings.HasPrefix(each, r.prefix) {
			found = append(found, each)
		}
	}
	slices.Sort(found)
	return found
}

func (r run) note(step string, saw any) {
	if err := json.NewEncoder(os.Stdout).Encode(row{"step": step, "saw": saw}); err != nil {
		panic(err)
	}
}

// must is for what no broker may refuse.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// outcome is the protocol's name of an error, whichever client tells it.
func outcome(err error) string {
	var (
		franz   *kerr.Error
		saramas sarama.KError
		segment kafka.Error
	)
	switch {
	case err == nil:
		return "NONE"
	case errors.As(err, &franz):
		return franz.Message
	case errors.As(err, &saramas):
		return outcomeOf(int16(saramas))
	case errors.As(err, &segment):
		return outcomeOf(int16(segment))
	}
	return err.Error()
}

func outcomeOf(code int16) string { return outcome(kerr.ErrorForCode(code)) }

// eventually is what is seen as soon as it is what was expected, or else what is seen at last: a
// broker that is told by a controller hears of a change a little later.
func eventually(ask func() any, expected any) any {
	deadline := time.Now().Add(patience)
	saw := ask()
	for fmt.Sprint(saw) != fmt.Sprint(expected) && time.Now().Before(deadline) {
		time.Sleep(pause)
		saw = ask()
	}
	return saw
}
