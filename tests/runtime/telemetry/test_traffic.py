"""What a process has moved: sums by owner, way and direction, and the table that is shown of them."""

from __future__ import annotations

from meshbook.runtime.telemetry.traffic import OTHERS, Traffic, TransferRecord, TransferTable, table_of


def test_transfers_of_a_kind_are_summed() -> None:
    traffic = Traffic("mesh.1")
    for size in (10, 20):
        traffic.note("mesh.0", size, "process memory", 0.5, is_write=False)
    traffic.note("mesh.0", 7, "process memory", 0.25, is_write=True)
    traffic.note("mesh.0", 1, "host agent", 0.25, is_write=True)
    assert traffic.rows() == [
        TransferRecord("mesh.1", "mesh.0", "process memory", "read", 30, 2, 1.0),
        TransferRecord("mesh.1", "mesh.0", "process memory", "write", 7, 1, 0.25),
        TransferRecord("mesh.1", "mesh.0", "host agent", "write", 1, 1, 0.25),
    ]


def test_it_does_not_grow_with_the_number_of_owners() -> None:
    traffic = Traffic("mesh.1", most=2)
    for number in range(100):
        traffic.note(f"mesh.{number}", 1, "message", 0.0, is_write=False)
    assert [(row.owner, row.bytes) for row in traffic.rows()] == [("mesh.0", 1), ("mesh.1", 1), (OTHERS, 98)]


def test_the_table_names_ranks_and_reads_well() -> None:
    rows = [TransferRecord("m.1", "m.0", "process memory", "read", 64_000_000, 1_200, 2.5)]
    rows.append(TransferRecord("m.10", "m.0", "message", "write", 12, 1, 0.004))
    table = table_of(rows, ["m.2"], lambda node: f"rank {node.partition('.')[2]}")
    assert repr(table).splitlines() == [
        "by       owner   backend         direction  bytes  transfers    time",
        "rank 1   rank 0  process memory  read       64 MB      1,200  2.50 s",
        "rank 10  rank 0  message         write       12 B          1    4 ms",
        "no reply from rank 2",
    ]
    assert repr(TransferTable()) == "no transfers"
    assert repr(table_of([], ["m.2"], str)) == "no transfers\nno reply from m.2"
