"""The one kit for settings: what a value may be, fields and their meaning, names and suggestions
for misspelt ones, rules across fields, and the reference pages that are made of all this. The
broker, its topics, the clients, sessions and Spark bring their fields and their own rules, and no
more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.settings.catalogue import (
        Catalogue as Catalogue,
        Setting as Setting,
        by_name as by_name,
        dotted as dotted,
        flat as flat,
        merged as merged,
        not_allowed as not_allowed,
        setting as setting,
        settings_of as settings_of,
    )
    from onceflow.settings.pages import (
        Page as Page,
        Section as Section,
        example_lines as example_lines,
        render_page as render_page,
        wrapped_comment as wrapped_comment,
    )
    from onceflow.settings.rules import (
        Rule as Rule,
        broken_rules as broken_rules,
        contradiction as contradiction,
        first_is_larger as first_is_larger,
    )
    from onceflow.settings.suggestions import did_you_mean as did_you_mean, either as either
    from onceflow.settings.values import (
        INT_MAX as INT_MAX,
        LARGEST_PORT as LARGEST_PORT,
        LONG_MAX as LONG_MAX,
        PATTERN as PATTERN,
        SECRET as SECRET,
        TEXT as TEXT,
        TOPIC_NAME as TOPIC_NAME,
        TOPIC_NAMES as TOPIC_NAMES,
        TRUE_OR_FALSE as TRUE_OR_FALSE,
        YES_OR_NO as YES_OR_NO,
        NotAllowed as NotAllowed,
        SettingKind as SettingKind,
        duration as duration,
        host_and_port as host_and_port,
        list_of as list_of,
        one_of as one_of,
        plain_text as plain_text,
        read_whole as read_whole,
        shown as shown,
        text_of as text_of,
        whole_number as whole_number,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "catalogue": "by_name Catalogue dotted flat merged not_allowed Setting setting "
            "settings_of",
            "pages": "example_lines Page render_page Section wrapped_comment",
            "rules": "broken_rules contradiction first_is_larger Rule",
            "suggestions": "did_you_mean either",
            "values": "duration host_and_port INT_MAX LARGEST_PORT list_of LONG_MAX NotAllowed "
            "one_of PATTERN plain_text read_whole SECRET SettingKind shown TEXT text_of "
            "TOPIC_NAME TOPIC_NAMES TRUE_OR_FALSE whole_number YES_OR_NO",
        },
    )
