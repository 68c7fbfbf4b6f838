"""Arrow arrays without the rest of their parent: a slice is a view of its parent's buffers, and keeps all of them.

The data of numbers and texts is not copied. Offsets and validity are made anew, since they would count from the
parent's beginning; rarely used types are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SLACK = 4096  # bytes that an array may keep beyond its contents


def keeps_more(array: Any, pyarrow: Any) -> bool:
    """Return whether an array keeps much more memory than its contents need."""
    shown = _viewed_bytes(array) if _is_view(array.type, pyarrow.types) else array.nbytes
    return bool(array.get_total_buffer_size() > shown + max(SLACK, shown // 8))


def trimmed(array: Any, pyarrow: Any) -> Any:
    """Return an equal array that keeps no more than its contents."""
    if isinstance(array, pyarrow.ExtensionArray):
        return pyarrow.ExtensionArray.from_storage(array.type, trimmed(array.storage, pyarrow))
    if _is_view(array.type, pyarrow.types):
        return _trimmed_views(array, pyarrow)
    if not len(array):  # it may have no buffers to cut
        return pyarrow.concat_arrays([array])
    for tests, trim in _TRIMMERS.items():
        if any(getattr(pyarrow.types, test)(array.type) for test in tests):
            return trim(array, pyarrow)
    return _trimmed_items(array, pyarrow) if _byte_width(array.type) else pyarrow.concat_arrays([array])


def _is_view(kind: Any, types: Any) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _viewed_bytes(array: Any) -> int:
    """Return the bytes of an array of string views, whose `nbytes` counts all memory that the views might use."""
    import numpy  # weight: only senders of such texts need it

    # A view has 16 bytes: a length, and the text itself if it has at most 12, else its location.
    lengths = numpy.frombuffer(array.buffers()[1] or b"", numpy.int32)[::4][array.offset : array.offset + len(array)]
    return 16 * len(array) + int(lengths[lengths > 12].sum(dtype=numpy.int64))


def _trimmed_views(array: Any, pyarrow: Any) -> Any:
    # The cast gathers the texts one after the other, and views of these refer to nothing else.
    is_text = pyarrow.types.is_string_view(array.type)
    return array.cast(pyarrow.large_string() if is_text else pyarrow.large_binary()).cast(array.type)


def _trimmed_dictionary(array: Any, pyarrow: Any) -> Any:
    indices, dictionary = trimmed(array.indices, pyarrow), array.dictionary
    if keeps_more(dictionary, pyarrow):
        dictionary = trimmed(dictionary, pyarrow)
    return pyarrow.DictionaryArray.from_arrays(indices, dictionary, ordered=array.type.ordered, safe=False)


def _trimmed_fixed_lists(array: Any, pyarrow: Any) -> Any:
    size = array.type.list_size
    values = trimmed(array.values.slice(array.offset * size, len(array) * size), pyarrow)
    return _assembled(array, pyarrow, [], values)


def _trimmed_lists(array: Any, pyarrow: Any) -> Any:
    first, last, offsets = _own_offsets(array, pyarrow)
    return _assembled(array, pyarrow, [offsets], trimmed(array.values.slice(first, last - first), pyarrow))


def _trimmed_texts(array: Any, pyarrow: Any) -> Any:
    first, last, offsets = _own_offsets(array, pyarrow)
    data = array.buffers()[2]
    return _assembled(array, pyarrow, [offsets, None if data is None else data.slice(first, last - first)])


def _trimmed_items(array: Any, pyarrow: Any) -> Any:
    width = _byte_width(array.type)
    return _assembled(array, pyarrow, [array.buffers()[1].slice(array.offset * width, len(array) * width)])


_TRIMMERS: Mapping[tuple[str, ...], Callable[[Any, Any], Any]] = {
    ("is_dictionary",): _trimmed_dictionary,
    ("is_fixed_size_list",): _trimmed_fixed_lists,
    ("is_list", "is_large_list"): _trimmed_lists,
    ("is_string", "is_large_string", "is_binary", "is_large_binary"): _trimmed_texts,
}


def _byte_width(kind: Any) -> int:
    """Return the item width of a type with one buffer of fixed-width items; 0 for other and bit-packed types."""
    if kind.num_fields or kind.num_buffers != 2:
        return 0
    try:
        bits = int(kind.bit_width)
    except ValueError:
        return 0
    return bits // 8 if bits % 8 == 0 else 0


def _own_offsets(array: Any, pyarrow: Any) -> tuple[int, int, Any]:
    """Return the start and end of the slice's content in its parent's, and the offsets relative to that start."""
    import numpy  # weight: only senders of such slices need it

    dtype = numpy.int64 if str(array.type).startswith("large_") else numpy.int32
    ends = numpy.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array) + 1]
    return int(ends[0]), int(ends[-1]), pyarrow.py_buffer(ends - ends[0])


def _assembled(array: Any, pyarrow: Any, buffers: list[Any], child: Any = None) -> Any:
    """Return an array like this one, of these buffers, which begin at its first item."""
    count = array.null_count
    # A bitmap may begin within a byte; its copy begins at a byte.
    validity = pyarrow.concat_arrays([array.is_valid()]).buffers()[1] if count else None
    children = None if child is None else [child]
    return pyarrow.Array.from_buffers(array.type, len(array), [validity, *buffers], count, 0, children)
