"""What goes over the wire: named arrays and words, and nothing else."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict


def packed(arrays, **words):
    """A message's content of arrays, in order, and words or numbers by name."""
    record = ArrayRecord({f"{k:06d}": Array(np.asarray(a)) for k, a in enumerate(arrays)})
    return RecordDict({"arrays": record, "words": ConfigRecord(words)})


def unpacked(content):
    """Arrays and words of a content that `packed` made; KeyError or ValueError for another one."""
    record = content.array_records["arrays"]
    return [record[key].numpy() for key in sorted(record)], dict(content.config_records["words"])
