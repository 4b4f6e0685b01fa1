"""What commands share: options, tables, notes, questions, and how an error is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.cli.common.confirmation import (
        Kind as Kind,
        confirm as confirm,
        delete_each as delete_each,
        require_answer as require_answer,
    )
    from onceflow.cli.common.errors import report as report
    from onceflow.cli.common.lazy import (
        APP_SETTINGS as APP_SETTINGS,
        LazyCommand as LazyCommand,
        lazy_group as lazy_group,
    )
    from onceflow.cli.common.notes import (
        client_notes as client_notes,
        no_connection_notes as no_connection_notes,
    )
    from onceflow.cli.common.options import (
        DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP,
        AsJson as AsJson,
        Bootstrap as Bootstrap,
        ClientSettings as ClientSettings,
        TopicName as TopicName,
        Yes as Yes,
    )
    from onceflow.cli.common.output import (
        Bar as Bar,
        counted as counted,
        note as note,
        print_json as print_json,
        print_table as print_table,
        print_text as print_text,
        print_title as print_title,
        progress_bar as progress_bar,
        warn as warn,
    )
    from onceflow.cli.common.positions import (
        partitions_of as partitions_of,
        resolve as resolve,
        within as within,
    )
    from onceflow.cli.common.session import (
        Session as Session,
        all_settings as all_settings,
        connected as connected,
        connected_by as connected_by,
    )
    from onceflow.cli.common.signals import (
        catch_signals as catch_signals,
        hold_up as hold_up,
        not_ignored as not_ignored,
        run_in as run_in,
        status_after as status_after,
    )
    from onceflow.cli.common.streams import (
        OutputFailed as OutputFailed,
        give_up_stdout as give_up_stdout,
        prepare_streams as prepare_streams,
        require_stdin as require_stdin,
        require_stdout as require_stdout,
    )
    from onceflow.cli.common.values import (
        Place as Place,
        Position as Position,
        bytes_from_json as bytes_from_json,
        bytes_to_json as bytes_to_json,
        bytes_to_text as bytes_to_text,
        duration_text as duration_text,
        parse_pairs as parse_pairs,
        parse_position as parse_position,
        parse_settings as parse_settings,
        parse_topic as parse_topic,
        time_text as time_text,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "confirmation": "Kind confirm delete_each require_answer",
            "errors": "report",
            "lazy": "APP_SETTINGS LazyCommand lazy_group",
            "notes": "client_notes no_connection_notes",
            "options": "AsJson Bootstrap ClientSettings DEFAULT_BOOTSTRAP TopicName Yes",
            "output": "Bar counted note print_json print_table print_text print_title "
            "progress_bar warn",
            "positions": "partitions_of resolve within",
            "session": "Session all_settings connected connected_by",
            "signals": "catch_signals hold_up not_ignored run_in status_after",
            "streams": "OutputFailed give_up_stdout prepare_streams require_stdin require_stdout",
            "values": "Place Position bytes_from_json bytes_to_json bytes_to_text "
            "duration_text parse_pairs parse_position parse_settings parse_topic "
            "time_text",
        },
    )
