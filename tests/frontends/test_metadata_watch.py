"""The metadata of grpcio's calls takes little memory, however much clients send."""

from __future__ import annotations

import asyncio

from tfs.frontends.rpc.grpcio.metadata_watch import MetadataWatch

_SHORT = (("key", "v" * 997),)


def test_only_excessive_metadata_is_refused() -> None:
    """Four times what grpcio accepts by itself is excessive, or what the operator says."""

    async def body() -> None:
        watch = MetadataWatch()
        assert not watch.is_too_much((("key", "v" * 65_000),))
        assert watch.is_too_much((("key", b"v" * 70_000),))
        assert not MetadataWatch(100_000).is_too_much((("key", "v" * 70_000),))

    asyncio.run(body())


def test_the_collector_runs_for_each_megabyte_of_metadata() -> None:
    """A collection follows each megabyte of metadata, once the call was taken."""

    async def body() -> None:
        generations: list[int] = []
        watch = MetadataWatch(collect=generations.append)
        for _ in range(1048):
            watch.is_too_much(_SHORT)
        await asyncio.sleep(0)
        assert generations == []
        watch.is_too_much(_SHORT)
        assert generations == []
        await asyncio.sleep(0)
        assert generations == [1]

    asyncio.run(body())
