"""Records that backends fill in: what no reader would understand is refused when it is made."""

from __future__ import annotations

import dataclasses

import pytest

from oxidize_host import BuildInfo, DeviceInfo, MemoryInfo, Unavailable


def test_an_unknown_kind_of_reason_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'Broken'.*DriverMissing"):
        Unavailable("Broken", "x")


def test_an_unknown_kind_of_device_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="'gpu'.*discrete"):
        DeviceInfo("x", kind="gpu")


def test_a_reason_without_a_remedy_is_its_message():
    assert str(Unavailable("NoDevice", "nothing there")) == "nothing there"


@pytest.mark.parametrize("record", [Unavailable("NoDevice", "x"), BuildInfo("b", "1"), DeviceInfo("d"), MemoryInfo(1, 1, "x")])
def test_records_are_frozen_and_comparable(record):
    field = dataclasses.fields(record)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, field, "changed")
    assert record == dataclasses.replace(record)


def test_unknown_memory_is_none_and_not_zero():
    assert MemoryInfo() == MemoryInfo(None, None, "")
    assert DeviceInfo("x").memory == MemoryInfo()


def test_a_backends_build_info_may_have_fields_of_its_own():
    @dataclasses.dataclass(frozen=True, slots=True)
    class CudaBuildInfo(BuildInfo):
        ptx: str = ""

    assert CudaBuildInfo("cuda", "1.0", ptx="8.5").ptx == "8.5"
