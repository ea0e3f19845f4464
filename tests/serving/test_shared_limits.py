"""Who gets a place where there are not enough, and who goes next."""

import pytest

from serving.engine.clients import Client, network_of
from serving.engine.shared_limits import SharedLimit
from serving.errors import Overloaded
from serving.observability.metrics import Metrics
from serving.observability.refusals import Refusals

ANNA, BEN = Client("10.0.0.1", "10.0.0.1"), Client("10.0.0.2", "10.0.0.2")
BEARER = Client("10.0.0.1", "10.0.0.1", has_token=True)


class Clock:
    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 0.001
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


def silent(limit, client, amount=1):
    evicted = []
    hold = limit.hold(client, amount, lambda: evicted.append(True))
    hold.wait()
    return hold


def test_one_client_cannot_hold_everything(clock):
    limit = SharedLimit("places", 8, now=clock)
    for _ in range(6):
        limit.hold(ANNA, 1)
    with pytest.raises(Overloaded, match="too many places"):
        limit.hold(ANNA, 1)
    for _ in range(2):
        limit.hold(BEN, 1)
    with pytest.raises(Overloaded):
        limit.hold(BEN, 1)


def test_a_client_alone_that_can_hold_one_holds_one(clock):
    with SharedLimit("places", 1, now=clock).held(ANNA) as hold:
        assert hold.amount == 1


def test_who_is_silent_makes_room_and_who_works_does_not(clock):
    limit = SharedLimit("places", 4, now=clock)
    working = limit.hold(ANNA, 1)
    first, second = silent(limit, ANNA), silent(limit, ANNA)
    third = limit.hold(ANNA, 1)
    assert [hold.evicted for hold in (working, first, second, third)] == [False, True, False, False]
    third.wait()
    first_again = limit.hold(BEN, 1)
    assert not second.evicted and limit.used == 4
    limit.hold(BEN, 1)
    assert (second.evicted, first_again.evicted, working.evicted) == (True, False, False)


def test_room_is_made_by_the_client_that_holds_most(clock):
    limit = SharedLimit("places", 4, now=clock)
    lone = silent(limit, BEN)
    many = [silent(limit, ANNA) for _ in range(3)]
    limit.hold(Client("10.0.0.3", "10.0.0.3"), 1)
    assert not lone.evicted and many[0].evicted


def test_a_client_over_its_share_makes_room_itself(clock):
    limit = SharedLimit("bytes", 100, now=clock)
    other, own = silent(limit, BEN, 20), silent(limit, ANNA, 70)
    limit.hold(ANNA, 10)
    assert own.evicted and not other.evicted


def test_patience_is_kept(clock):
    limit = SharedLimit("places", 1, patience_seconds=5.0, now=clock)
    silent(limit, ANNA)
    with pytest.raises(Overloaded):
        limit.hold(BEN, 1)
    clock.seconds = 6.0
    limit.hold(BEN, 1)


def test_a_reserve_is_kept_for_those_with_a_token(clock):
    limit = SharedLimit("places", 16, has_reserve=True, now=clock)
    for number in range(14):
        limit.hold(Client("x", f"network {number}"), 1)
    with pytest.raises(Overloaded):
        limit.hold(BEN, 1)
    limit.hold(BEARER, 1)


def test_those_with_a_token_go_last(clock):
    limit = SharedLimit("places", 2, now=clock)
    with_token = silent(limit, BEARER)
    without = silent(limit, BEN)
    limit.hold(BEARER, 1)
    assert without.evicted and not with_token.evicted


def test_what_was_evicted_gets_nothing_more_and_gives_back_nothing_twice(clock):
    limit = SharedLimit("bytes", 100, now=clock)
    gone = silent(limit, ANNA, 60)
    limit.hold(BEN, 60)
    with pytest.raises(Overloaded, match="silent"):
        limit.resize(gone, 70)
    limit.release(gone)
    assert limit.used == 60


def test_that_little_is_held_after_much_is_said_once(clock):
    fallen = []
    limit = SharedLimit("bytes", 100, now=clock, on_fall=lambda: fallen.append(limit.used))
    for amount in (10, 30, 4, 30):
        limit.release(limit.hold(ANNA, amount))
    assert fallen == [0, 0]


def test_refusals_are_counted_and_logged_once_a_second(caplog):
    metrics = Metrics()
    limit = SharedLimit("places", 1, refusals=Refusals(metrics))
    limit.hold(ANNA, 1)
    for _ in range(5):
        with pytest.raises(Overloaded):
            limit.hold(BEN, 1)
    assert b'onepass_refused_total{what="places"} 5.0' in metrics.render()[0]
    lines = [record.fields for record in caplog.records if record.message == "refused"]
    assert lines == [{"what": "places", "client": "10.0.0.2", "number": 1}]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("a:b", "a:b"),
    ],
)
def test_a_customer_with_many_addresses_is_one_client(address, network):
    assert network_of(address) == network
