"""The device under test."""

import pytest

import oxidize_host as ox


@pytest.fixture(scope="module")
def device():
    return ox.Device("cpu")
