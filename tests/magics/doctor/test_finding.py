"""Findings: checks that fail, the report, and the worst level."""

from __future__ import annotations

from collections.abc import Iterator

from meshbook.magics.doctor.finding import Finding, examine, format_report, worst_of


def test_a_check_that_fails_is_a_finding() -> None:
    def sees_well() -> Iterator[Finding]:
        yield Finding("ok", "eyes", "fine")

    def breaks_down() -> Iterator[Finding]:
        raise OSError("no such place")

    found = examine([breaks_down, sees_well])
    assert [finding.level for finding in found] == ["warning", "ok"]
    assert found[0].text == "the check failed: OSError: no such place"


def test_findings_are_formatted_as_a_table_with_a_summary() -> None:
    found = [Finding("ok", "cores", "8"), Finding("warning", "/dev/shm", "64 MiB in all", "give it more")]
    assert format_report(found) == (
        "ok       cores     8\n"
        "warning  /dev/shm  64 MiB in all\n"
        "                   -> give it more\n"
        "\n"
        "meshes work; 1 warning above"
    )
    assert format_report(found[:1]).endswith("\nno problems found")
    assert format_report([*found, Finding("problem", "x", "y")]).endswith("\n1 problem to fix before meshes work")


def test_the_worst_level_counts() -> None:
    assert worst_of([]) == "ok"
    assert worst_of([Finding("note", "", ""), Finding("problem", "", ""), Finding("ok", "", "")]) == "problem"
