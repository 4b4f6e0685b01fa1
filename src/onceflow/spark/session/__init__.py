"""A fast Spark session: its settings, its Java, its Python, and the home it is started from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.doors import door

if TYPE_CHECKING:
    from onceflow.spark.session.home import (
        ARCHIVE as ARCHIVE,
        find_java_home as find_java_home,
        spark_home as spark_home,
    )
    from onceflow.spark.session.python import choose_python as choose_python, is_local as is_local
    from onceflow.spark.session.session import (
        DEFAULT_MASTER as DEFAULT_MASTER,
        is_local_path as is_local_path,
        make_session as make_session,
        require_spark as require_spark,
        session_settings as session_settings,
    )
else:
    __getattr__ = door(
        __name__,
        {
            "home": "ARCHIVE find_java_home spark_home",
            "python": "choose_python is_local",
            "session": "DEFAULT_MASTER is_local_path make_session require_spark session_settings",
        },
    )
