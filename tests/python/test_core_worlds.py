#!/usr/bin/python3
"""adaptdl._core.Worlds: the state machine of sched/worlds.h as whoever starts processes from Python sees it. What it
decides is tested in tests/unit/test_worlds.c; here is that every word gets in and out."""

import json

import harness
import pytest

from adaptdl import _core


def made(count=1, **more):
    return _core.Worlds(**{"name": "g0", "restarts": 0, "places": list(range(count)), "nodes": 1, **more})


def offer(worlds, after=0, dropped=0, name="g0", *saves):
    text = worlds.offer(after, dropped, name, *saves)
    return None if text is None else json.loads(text)


def grown(worlds, places, now=1.0):
    """All members can go on with others; those that are missing are started, and wait."""
    for member, _ in worlds.members:
        assert worlds.hear(member, "able", now)
    worlds.want(places)
    start, end, opened, notes = worlds.act(now)
    assert end == opened == notes == []
    for member, _, _ in start:
        assert worlds.hear(member, "ready", now)
    return start


def test_grow_and_shrink():
    worlds = made()
    assert worlds.members == [(0, 0)] and worlds.settled and not worlds.able
    assert grown(worlds, [0, 7, 8]) == [(1, 1, 7), (2, 2, 8)]
    assert worlds.able and not worlds.settled and not worlds.restart
    assert worlds.act(2.0) == ([], [], [0, 1, 2], [])
    assert not offer(worlds, name="none")["open"]  # nobody can go there yet
    worlds.meet("10.0.0.1", 4000, 2)
    assert offer(worlds) == {"scheduler": "g0", "restarts": 0, "generation": 1, "dropped": 0, "saves": 0, "open": True,
                             "nodes": 2, "address": "10.0.0.1", "port": 4000, "members": [0, 1, 2]}
    assert offer(worlds, after=1) is None
    assert offer(worlds, after=1, name="none")["generation"] == 1  # somebody who has never asked
    for member in range(3):
        worlds.hear(member, "entered 1", 3.0)
    worlds.hear(0, "paused 1 0.25", 3.0)
    assert worlds.act(3.0) == ([], [], [], [("resized", -1, 0.25, "3")])
    assert worlds.members == [(0, 0), (1, 7), (2, 8)] and worlds.settled
    worlds.want([0, 8])
    assert worlds.act(4.0) == ([], [], [0, 2], [])
    worlds.meet("10.0.0.1", 4001, 2)
    worlds.see(1, "left")
    assert worlds.handles(1)
    for member in (0, 2):
        worlds.hear(member, "entered 2", 5.0)
    worlds.act(5.0)
    assert worlds.members == [(0, 0), (2, 8)] and worlds.settled and not offer(worlds)["open"]


def test_a_checkpoint_is_asked_for():
    """Whoever asks is answered once; those who do not want to know are not."""
    worlds = made(2)
    assert offer(worlds, 0, 0, "g0", 0) is None
    worlds.save()
    assert offer(worlds, 0, 0, "g0", 0)["saves"] == 1 and offer(worlds, 0, 0, "g0", 1) is None
    assert offer(worlds) is None


def test_a_death_that_the_others_survive():
    worlds = made(3)
    grown(worlds, [0, 1, 2])
    worlds.see(0, "killed")
    assert worlds.handles(0)
    assert [note[:2] for note in worlds.act(1.0)[3]] == [("died", 0)] and worlds.broken
    worlds.hear(1, "lost 0 5 0", 1.0)
    assert worlds.act(1.0)[2] == []  # the other has not noticed yet
    worlds.hear(2, "lost 0 6 0", 1.0)
    assert worlds.act(1.0)[2] == [2, 1]  # who is ahead is first
    worlds.meet("10.0.0.2", 4002, 1)
    for member in (1, 2):
        worlds.hear(member, "entered 1", 2.0)
    worlds.hear(2, "paused 1 0.5", 2.0)
    start, _, _, notes = worlds.act(2.0)
    assert notes == [("went on", -1, 0.5, "2")] and worlds.members == [(2, 2), (1, 1)]
    assert [(number, place) for number, _, place in start] == [(3, 0)]  # its place is filled again


def test_what_takes_a_restart():
    worlds = made(2)
    worlds.want([0, 1, 2])
    assert worlds.act(1.0) == ([], [], [], []) and worlds.restart and not worlds.able  # it never said that it can
    worlds = made(2)
    worlds.see(0, "killed")
    assert not worlds.handles(0)
    worlds = made()
    grown(worlds, [0, 1])
    worlds.refuse("no port")
    assert worlds.refused and worlds.restart and not worlds.able
    assert worlds.act(2.0)[3] == [("restart", -1, 0.0, "no port")]
    worlds = made(2)
    worlds.stop()
    worlds.see(0, "left")
    assert not worlds.handles(0)  # an end that was asked for


def test_one_that_is_not_needed_any_more():
    worlds = made()
    (member, _, _), = grown(worlds, [0, 1])
    worlds.want([0])
    assert worlds.act(2.0)[1] == [member]
    assert worlds.act(2.0)[1] == []  # once is enough
    worlds.see(member, "unwanted")
    assert worlds.act(3.0) == ([], [], [], []) and worlds.settled


@pytest.mark.parametrize("call, kind, words", [
    (lambda: made(name="n" * 64), ValueError, "name nnn"),
    (lambda: made(nodes=0), ValueError, "nodes 0"),
    (lambda: made(places=[-1]), ValueError, "place -1"),
    (lambda: made(places=(1,)), TypeError, "places must be a list"),
    (lambda: made().see(0, "asleep"), ValueError, '"asleep" is no end of a process'),
    (lambda: made().see(5, "left"), LookupError, "there is no member 5"),
    (lambda: made().handles(5), LookupError, "there is no member 5"),
])
def test_bad_input(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_strange_lines_are_not_understood():
    worlds = made()
    assert not worlds.hear(0, "entered", 1.0) and not worlds.hear(9, "able", 1.0) and not worlds.hear(0, "", 1.0)
    worlds.meet("10.0.0.1", 1, 1)  # nothing was opened
    assert offer(worlds) is None


if __name__ == "__main__":
    harness.main(__file__)
