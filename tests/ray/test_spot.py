#!/usr/bin/env python3
"""The listener for termination notices, against a stand-in of EC2's metadata service."""

import pytest
import rayharness
import standin

from adaptdl_ray.aws.spot import Notice, SpotListener, SpotReader

TEXT = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'


@pytest.fixture(params=[2, 1])
def service(request):
    found = standin.MetadataService(version=request.param)
    yield found
    found.close()


def test_nothing_until_the_notice(service):
    reader = SpotReader(service.url)
    assert reader.read() is None and reader.read() is None
    service.notices["", standin.ACTION] = TEXT
    assert reader.read() == Notice("termination", TEXT)


def test_token_first_and_then_reused(service):
    reader = SpotReader(service.url + "/")
    for _ in range(3):
        reader.read()
    assert service.asked[0] == ("PUT", standin.TOKEN)
    assert [asked[0] for asked in service.asked].count("PUT") == 1
    tokens = {asked[2] for asked in service.asked if asked[0] == "GET"}
    assert tokens == ({"token--0"} if service.version == 2 else {None})


def test_a_token_that_is_refused_is_renewed():
    service = standin.MetadataService(version=2)
    try:
        reader = SpotReader(service.url)
        assert reader.read() is None
        service.tokens.clear()
        service.notices["", standin.ACTION] = TEXT
        assert reader.read() == Notice("termination", TEXT)
    finally:
        service.close()


def test_rebalance_recommendation(service):
    service.notices["", standin.REBALANCE] = '{"noticeTime": "2026-01-01T00:00:00Z"}'
    assert SpotReader(service.url).read().kind == "rebalance"
    service.notices["", standin.ACTION] = TEXT
    assert SpotReader(service.url).read().kind == "termination"


def test_no_service_is_not_a_notice():
    service = standin.MetadataService()
    service.close()
    with pytest.raises(OSError):
        SpotReader(service.url).read()
    assert SpotListener(service.url, "n", interval_s=0.01).wait(timeout_s=0.5) is None


def test_listener_waits_for_its_own_node(service):
    service.notices["other", standin.ACTION] = TEXT
    listener = SpotListener(service.url + "/{node}", "mine", interval_s=0.05)
    assert listener.wait(timeout_s=0.5) is None
    service.notices["mine", standin.ACTION] = TEXT
    assert listener.wait(timeout_s=rayharness.LONG_S) == Notice("termination", TEXT)


if __name__ == "__main__":
    rayharness.main(__file__)
