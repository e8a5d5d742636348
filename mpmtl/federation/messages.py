"""What goes over the wire: named arrays and words, and nothing else."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS


def packed(arrays, stage=None, **words):
    """A message's content of arrays, in order, and words or numbers by name.

    Parameters
    ----------
    arrays : sequence of ndarray
    stage : ConfigRecord, optional
        Of a stage of secure aggregation.
    """
    record = ArrayRecord({f"{k:06d}": Array(np.asarray(a)) for k, a in enumerate(arrays)})
    content = RecordDict({"arrays": record, "words": ConfigRecord(words)})
    if stage is not None:
        content[RECORD_KEY_CONFIGS] = stage
    return content


def unpacked(content):
    """Arrays and words of a content that `packed` made; KeyError or ValueError for another one."""
    record = content.array_records["arrays"]
    return [record[key].numpy() for key in sorted(record)], dict(content.config_records["words"])
