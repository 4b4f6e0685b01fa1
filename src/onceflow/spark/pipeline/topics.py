"""Whether the topics that a pipeline reads are there; where the broker is the pipeline's own, those
that are missing are made."""

from __future__ import annotations

from onceflow.client import Cluster, ReaderSettings, TopicNotFound, create_topic
from onceflow.spark.errors import InvalidPipeline, Problem
from onceflow.spark.pipeline.plan import SINGLE, PipelinePlan
from onceflow.spark.sink import blocking

_SUBSCRIBE = "subscribe"


def require_topics(plan: PipelinePlan, settings: ReaderSettings, *, make: bool) -> None:
    """Raises `InvalidPipeline` with all that are missing; `make` creates them instead."""
    missing = blocking(_missing(plan, settings, make=make))
    if missing:
        raise InvalidPipeline(missing)


async def _missing(plan: PipelinePlan, settings: ReaderSettings, *, make: bool) -> list[Problem]:
    problems = []
    async with Cluster(settings.bootstrap_servers, settings.cluster()) as cluster:
        for source in plan.sources:
            path = ("source",) if source.name == SINGLE else ("source", source.name)
            for topic in filter(None, source.options.get(_SUBSCRIBE, "").split(",")):
                try:
                    await cluster.find_topic(topic)
                except TopicNotFound:
                    if make:
                        await create_topic(cluster, topic)
                    else:
                        told = f"there is no topic {topic!r}; `onceflow topics create` makes one"
                        problems.append(Problem((*path, "topics"), told))
    return problems
