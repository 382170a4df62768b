from __future__ import annotations

import gc

import pytest

from contextlab.reports import collection


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_also_after_an_error(enabled: bool) -> None:
    try:
        (gc.enable if enabled else gc.disable)()
        with collection.paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(ZeroDivisionError), collection.paused():
            _ = 1 / 0
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
