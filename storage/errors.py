"""The tree of storage errors.

```
StorageError
|-- StoreNotFoundError     store_not_found
|-- NotAStoreError         not_a_store
|-- StoreVersionError      store_version
|-- StoreReadOnlyError     store_read_only
|-- StoreFullError         store_full
|-- StoreUnreachableError  store_unreachable
|-- SpecError              spec
|-- SampleNotFoundError    sample_not_found   (also a KeyError)
|-- SampleShapeError       sample_shape
|-- StatesTooLargeError    states_too_large
|-- ResumeError            resume
`-- CorruptObjectError     corrupt_object     reason: metadata
    |-- TornObjectError                       reason: torn
    |-- ChecksumError                         reason: checksum
    |-- HashMismatchError                     reason: hash_mismatch
    |-- RowCountError                         reason: row_count
    |-- NonFiniteError                        reason: non_finite
    `-- AllZeroError                          reason: all_zero
```
"""

from typing import ClassVar


class StorageError(Exception):
    """Anything the store refuses or finds broken; `kind` is stable and meant for programs."""

    kind: ClassVar[str] = "storage"


class StoreNotFoundError(StorageError):
    """There is no folder at the store's path."""

    kind: ClassVar[str] = "store_not_found"


class NotAStoreError(StorageError):
    """The folder exists and holds something else."""

    kind: ClassVar[str] = "not_a_store"


class StoreVersionError(StorageError):
    """The store was written in a format version that this code does not know."""

    kind: ClassVar[str] = "store_version"


class StoreReadOnlyError(StorageError):
    """The file system or its permissions refuse to write."""

    kind: ClassVar[str] = "store_read_only"


class StoreFullError(StorageError):
    """The file system or the quota has no room left."""

    kind: ClassVar[str] = "store_full"


class StoreUnreachableError(StorageError):
    """Object storage does not answer, or refuses; or it cannot be asked from this process."""

    kind: ClassVar[str] = "store_unreachable"


class SpecError(StorageError):
    """A spec, or a request against it, is not valid or not unique."""

    kind: ClassVar[str] = "spec"


class SampleNotFoundError(StorageError, KeyError):
    """The store holds no such sample."""

    kind: ClassVar[str] = "sample_not_found"

    __str__ = Exception.__str__


class SampleShapeError(StorageError):
    """The arrays handed in do not fit each other or the spec."""

    kind: ClassVar[str] = "sample_shape"


class StatesTooLargeError(StorageError):
    """There is no memory for the states that were asked for."""

    kind: ClassVar[str] = "states_too_large"


class ResumeError(StorageError):
    """A training state does not fit the data on which it should go on."""

    kind: ClassVar[str] = "resume"


class CorruptObjectError(StorageError):
    """Committed bytes are not what was written; `reason` is the one that `checks.Finding` carries."""

    kind: ClassVar[str] = "corrupt_object"
    reason: ClassVar[str] = "metadata"


class TornObjectError(CorruptObjectError):
    """A file or a chunk is missing, or a file is too short."""

    reason: ClassVar[str] = "torn"


class ChecksumError(CorruptObjectError):
    """Bytes do not have the checksum stored with them."""

    reason: ClassVar[str] = "checksum"


class HashMismatchError(CorruptObjectError):
    """The stored token ids do not have the sample hash under which they are stored."""

    reason: ClassVar[str] = "hash_mismatch"


class RowCountError(CorruptObjectError):
    """States and token ids differ in their number of rows."""

    reason: ClassVar[str] = "row_count"


class NonFiniteError(CorruptObjectError):
    """States hold a NaN or an infinity."""

    reason: ClassVar[str] = "non_finite"


class AllZeroError(CorruptObjectError):
    """The state of a token is zero throughout."""

    reason: ClassVar[str] = "all_zero"
