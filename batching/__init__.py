"""Cross-request batching for any task type. Plain Python.

>>> from batching import BatchDriver, BatchQueueOptions
>>> def squares(numbers):
...     return [number * number for number in numbers]
>>> with BatchDriver() as driver:
...     queue = driver.add_queue(squares, BatchQueueOptions(max_batch_rows=8))
...     futures = [queue.submit(number) for number in range(4)]
...     print([future.result(timeout=10) for future in futures])
[0, 1, 4, 9]

A server with a loop of its own drives a ``SharedBatchScheduler`` itself:
docs/batching.md.
"""

from batching.batch import Batch, Runner
from batching.batching_options import QueuePolicy, SchedulerOptions
from batching.cost_table import CostTable, Padding
from batching.deadline_window import WindowOptions
from batching.driver import BatchDriver, DrivenQueue
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, LowPriority, Mixing

__all__ = [
    "Batch",
    "BatchDriver",
    "BatchQueue",
    "BatchQueueOptions",
    "CostTable",
    "DrivenQueue",
    "LowPriority",
    "Mixing",
    "Padding",
    "QueuePolicy",
    "Runner",
    "SchedulerOptions",
    "SharedBatchScheduler",
    "WindowOptions",
]
