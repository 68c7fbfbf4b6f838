"""What a fork server is started with."""

import pytest

from meshbook.runtime.hosts.start_agent import with_huge_pages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.tcache_count=0", "glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.check=1", "glibc.malloc.hugetlb=2:glibc.malloc.check=1"),
    ],
)
def test_the_c_library_of_workers_uses_huge_pages_unless_the_user_says_otherwise(given: str, expected: str) -> None:
    assert with_huge_pages(given) == expected
