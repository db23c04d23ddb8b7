"""Opens the feed that a job's document names."""

from __future__ import annotations

from vfs.model import LakePath
from vfs.samples import jobs
from vfs.samples.feeds.arrow import ArrowFeed
from vfs.samples.feeds.bins import BinsFeed
from vfs.samples.feeds.energon import Energon
from vfs.samples.feeds.indexed import BatchedOrder, IndexedFeed, MosaicOrder
from vfs.samples.feeds.numbers import NumberFile
from vfs.samples.feeds.protocol import Feed, Lake
from vfs.samples.feeds.shards import Mds, Tars
from vfs.samples.feeds.tokens import Chunks, Documents


async def open_feed(lake: Lake, job: jobs.Job, directory: LakePath) -> Feed:
    """Return the schedule of a job.

    Args:
        directory: of the job's document; its relative paths start there.
    Raises:
        InvalidFeed: its files can't be used.
    """
    feed = job.feed
    path = jobs.lake_path(feed.path, directory)
    match feed:
        case jobs.ArrowSource():
            return await ArrowFeed.open(lake, job, path)
        case jobs.BinsSource():
            return await BinsFeed.open(lake, job, path)
        case jobs.MegatronSource():
            order = await NumberFile.open(lake, LakePath(f"{path}-shuffle_index.npy"))
            data = jobs.lake_path(feed.data, directory)
            documents = await Documents.open(lake, path, data, add_extra_token=feed.add_extra_token)
            return IndexedFeed(job, BatchedOrder(feed.batches, order, documents.count), documents)
        case jobs.IndicesSource():
            order = await NumberFile.open(lake, path, plain=feed.index_dtype)
            files = [jobs.lake_path(file, directory) for file in feed.data]
            chunks = await Chunks.open(lake, files, feed.dtype, feed.chunk_tokens)
            return IndexedFeed(job, BatchedOrder(feed.batches, order, chunks.count), chunks)
        case jobs.MdsSource():
            streams = feed.streaming.streams if feed.streaming is not None else ()
            files = [jobs.lake_path(stream.path, directory) for stream in streams] or [path]
            mds = await Mds.open(lake, files, feed.column)
            if feed.streaming is not None:
                return IndexedFeed(job, MosaicOrder.open(feed.streaming, mds.streams, files[0]), mds)
            assert feed.batches is not None, "the document was checked"
            return IndexedFeed(job, BatchedOrder(feed.batches, await _order(lake, feed.order, directory), mds.count), mds)
        case jobs.TarSource():
            kind = Energon if feed.index == "energon" else Tars
            tars = await kind.open(lake, path, feed.part)
            return IndexedFeed(job, BatchedOrder(feed.batches, await _order(lake, feed.order, directory), tars.count), tars)


async def _order(lake: Lake, path: str, directory: LakePath) -> NumberFile | None:
    return await NumberFile.open(lake, jobs.lake_path(path, directory)) if path else None
