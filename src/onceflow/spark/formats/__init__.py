"""The values of records as columns and back: JSON and CSV by the rules of Spark's readers, and what
is done with records that cannot be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.formats.arrow_encode import (
        TableUnusable as TableUnusable,
        encode_values as encode_values,
        to_bytes as to_bytes,
    )
    from onceflow.spark.formats.arrow_parse import (
        Parser as Parser,
        option_problems as option_problems,
    )
    from onceflow.spark.formats.dead_letter_rows import (
        DEAD_LETTER as DEAD_LETTER,
        DEAD_LETTER_FIELDS as DEAD_LETTER_FIELDS,
        dead_letters as dead_letters,
        with_dead_letters as with_dead_letters,
    )
    from onceflow.spark.formats.format import Format as Format
    from onceflow.spark.formats.record import (
        DEEPEST as DEEPEST,
        END_OF_INPUT as END_OF_INPUT,
        IS_NULL as IS_NULL,
        NOT_JSON as NOT_JSON,
        NOT_UTF8 as NOT_UTF8,
        Marks as Marks,
        misfit as misfit,
    )
    from onceflow.spark.formats.schema import (
        Field as Field,
        MapOf as MapOf,
        Plain as Plain,
        SchemaMalformed as SchemaMalformed,
        has_other_keys as has_other_keys,
        parse_schema as parse_schema,
        spelled as spelled,
    )
    from onceflow.spark.formats.text import (
        HUGE_DECIMAL as HUGE_DECIMAL,
        Misfit as Misfit,
        zone_of as zone_of,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "arrow_encode": "TableUnusable encode_values to_bytes",
            "arrow_parse": "Parser option_problems",
            "dead_letter_rows": "DEAD_LETTER DEAD_LETTER_FIELDS dead_letters with_dead_letters",
            "format": "Format",
            "record": "DEEPEST END_OF_INPUT IS_NULL Marks NOT_JSON NOT_UTF8 misfit",
            "schema": "Field MapOf Plain SchemaMalformed has_other_keys parse_schema spelled",
            "text": "HUGE_DECIMAL Misfit zone_of",
        },
    )
