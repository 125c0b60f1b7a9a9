"""Pulls that wait: woken, kept, ended, dropped; against a stupid model."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.net.channel import MemoryChannel
from broker.pulling.long_poll import Hold, LongPoll
from tests.support.examples import examples


def make_hold(channel: MemoryChannel, queue: tuple[str, int], deadline_ms: int, answers: list, wanted: bool = True):
    def retry(final: bool) -> bool:
        if final or wanted:
            answers.append((queue, final))
        return final or wanted

    return Hold(channel, queue, deadline_ms, retry)


def test_an_arrival_answers_who_wants_it_and_leaves_the_others():
    poll, channel, answers = LongPoll(), MemoryChannel(), []
    poll.hold(make_hold(channel, ("T", 0), 100, answers))
    poll.hold(make_hold(channel, ("T", 0), 100, answers, wanted=False))
    poll.hold(make_hold(channel, ("T", 1), 100, answers))
    poll.arrived([("T", 0), ("U", 0)])
    assert answers == []
    poll.drain()
    assert answers == [(("T", 0), False)]
    assert len(poll) == 2 and poll.check() == []


def test_the_deadline_answers_in_any_case():
    poll, channel, answers = LongPoll(), MemoryChannel(), []
    poll.hold(make_hold(channel, ("T", 0), 100, answers, wanted=False))
    assert poll.next_deadline_ms() == 100
    poll.expire(99)
    assert answers == []
    poll.expire(100)
    assert answers == [(("T", 0), True)]
    assert len(poll) == 0 and poll.next_deadline_ms() is None


def test_a_closed_channel_is_forgotten():
    poll, channel, answers = LongPoll(), MemoryChannel(), []
    poll.hold(make_hold(channel, ("T", 0), 100, answers))
    poll.hold(make_hold(channel, ("T", 1), 100, answers))
    poll.forget(channel)
    assert len(poll) == 0 and channel.state.holds == set()
    poll.hold(make_hold(channel, ("T", 0), 100, answers))
    channel.close()
    poll.arrived([("T", 0)])
    poll.drain()
    poll.expire(1000)
    assert answers == [] and len(poll) == 0


def test_a_deleted_topic_lets_its_pulls_go():
    poll, channel, answers = LongPoll(), MemoryChannel(), []
    poll.hold(make_hold(channel, ("T", 0), 100, answers))
    poll.hold(make_hold(channel, ("U", 0), 100, answers))
    poll.release("T")
    assert answers == [(("T", 0), True)] and len(poll) == 1


def test_another_thread_wakes_the_loop_once():
    woken = []
    poll, channel, answers = LongPoll(lambda: woken.append(1)), MemoryChannel(), []
    poll.hold(make_hold(channel, ("T", 0), 100, answers))

    def elsewhere():
        poll.arrived([("U", 0)])
        poll.arrived([("T", 0)])
        poll.arrived([("T", 0)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert woken == [1]
    poll.drain()
    assert len(answers) == 1
    poll.arrived([("T", 0)])
    assert woken == [1], "the loop's own thread needs no wake-up"


def test_what_is_done_does_not_pile_up():
    poll, channel, answers = LongPoll(), MemoryChannel(), []
    for _ in range(5_000):
        poll.hold(make_hold(channel, ("T", 0), 10_000, answers))
        poll.arrived([("T", 0)])
        poll.drain()
    assert len(answers) == 5_000
    assert len(poll._deadlines) < 3_000


def test_many_answers_leave_the_loop_three_quarters_of_its_time():
    now, timers, woken, tried = [10.0], [], [], []
    poll, channel = LongPoll(lambda: woken.append(now[0])), MemoryChannel()
    poll.paced(lambda: now[0], lambda delay_s, call: timers.append((now[0] + delay_s, call)))

    def retry(_final: bool) -> bool:
        tried.append(now[0])
        now[0] += 0.001  # what an answer takes
        return False

    poll.hold(Hold(channel, ("T", 0), 100_000, retry))
    for _ in range(2):
        poll.arrived([("T", 0)])
        poll.drain()
    assert tried == [10.0] and len(timers) == 1, "the second arrival waits"
    at, call = timers.pop()
    assert at == pytest.approx(10.004)
    poll.arrived([("T", 0)])
    poll.drain()
    assert not timers and not woken, "who waits already waits once"
    now[0] = at
    call()
    assert woken == [at]
    poll.drain()
    assert tried == [10.0, at] and poll.check() == []
    now[0] = at + 1
    poll.arrived([("T", 0)])
    poll.drain()
    assert len(tried) == 3, "after a while without any there is no rest"


def test_a_short_answer_is_rested_from_so_briefly_that_nobody_waits():
    now, tried = [10.0], []
    poll, channel = LongPoll(), MemoryChannel()
    poll.paced(lambda: now[0], lambda *_: pytest.fail("no timer"))

    def retry(_final: bool) -> bool:
        tried.append(1)
        now[0] += 0.0001
        return False

    poll.hold(Hold(channel, ("T", 0), 100_000, retry))
    for _ in range(5):
        poll.arrived([("T", 0)])
        poll.drain()
    assert len(tried) == 5


def test_a_rest_is_four_milliseconds_at_most_and_wakes_by_itself_only_if_something_came():
    now, timers, woken = [10.0], [], []
    poll, channel = LongPoll(lambda: woken.append(1)), MemoryChannel()
    poll.paced(lambda: now[0], lambda delay_s, call: timers.append((delay_s, call)))

    def retry(_final: bool) -> bool:
        now[0] += 5.0
        return False

    poll.hold(Hold(channel, ("T", 0), 100_000, retry))
    for _ in range(2):
        poll.arrived([("T", 0)])
        poll.drain()
    assert [delay_s for delay_s, _ in timers] == [pytest.approx(0.004)]
    now[0] += 0.004
    poll.drain()  # at the end of some turn
    timers[0][1]()
    assert not woken


class Rounds:
    """A registry whose clock moves with each try, and whose timers the test calls."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.timers: list = []
        self.longest = 0
        self.tries: list = []
        self.poll, self.channel = LongPoll(self.drain), MemoryChannel()
        self.poll.paced(lambda: self.now_s, lambda _, call: self.timers.append(call))

    def hold(self, name: object, queue: str, wanted: bool = False) -> None:
        def retry(final: bool) -> bool:
            self.tries.append(name)
            self.now_s += 0.0012  # five tries in a round
            return wanted or final

        self.poll.hold(Hold(self.channel, (queue, 0), 100, retry))

    def drain(self) -> None:
        """One round of the loop; the most tries of any."""
        before = len(self.tries)
        self.poll.drain()
        self.longest = max(self.longest, len(self.tries) - before)

    def finish(self) -> None:
        while self.timers:
            self.now_s += 0.004
            self.timers.pop()()


def test_thousands_that_wait_for_one_queue_are_tried_some_in_a_round():
    rounds = Rounds()
    for number in range(1_000):
        rounds.hold(number, "T", wanted=number % 2 == 0)
    rounds.poll.arrived([("T", 0)])
    rounds.drain()
    assert len(rounds.tries) == 5
    rounds.finish()
    assert rounds.tries == list(range(1_000)), "each once, in the order in which they came"
    assert rounds.longest == 5 and len(rounds.poll) == 500 and rounds.poll.check() == []


def test_another_queue_does_not_wait_for_the_thousands():
    rounds = Rounds()
    for number in range(1_000):
        rounds.hold(number, "T")
    rounds.hold("other", "U", wanted=True)
    rounds.poll.arrived([("T", 0)])
    rounds.drain()
    rounds.poll.arrived([("U", 0)])
    rounds.finish()
    assert rounds.tries.index("other") < 12


def test_an_arrival_in_the_middle_of_the_tries_has_all_tried_once_more():
    rounds = Rounds()
    for number in range(12):
        rounds.hold(number, "T")
    rounds.poll.arrived([("T", 0)])
    rounds.drain()
    for _ in range(3):
        rounds.poll.arrived([("T", 0)])
    rounds.finish()
    assert rounds.tries == [*range(12), *range(12)] and not rounds.poll._again


def test_thousands_that_end_in_one_millisecond_end_some_at_a_time():
    rounds = Rounds()
    for number in range(103):
        rounds.hold(number, "T")
    for done in range(5, 105, 5):
        assert rounds.poll.expire(100)
        assert len(rounds.tries) == done
    assert not rounds.poll.expire(100)
    assert rounds.tries == list(range(103)) and rounds.poll.check() == []


def test_thousands_that_wait_for_a_deleted_topic_end_some_at_a_time():
    rounds, soon = Rounds(), []
    rounds.poll.sooner = lambda: soon.append(1)
    for number in range(12):
        rounds.hold(number, "T" if number != 3 else "U")
    rounds.poll.release("T")
    assert rounds.tries == [] and soon == [1]
    assert rounds.poll.expire(0) and rounds.poll.expire(0) and not rounds.poll.expire(0)
    assert rounds.tries == [number for number in range(12) if number != 3]
    assert len(rounds.poll) == 1 and rounds.poll.check() == []


class Holds(RuleBasedStateMachine):
    """Any order of calls leaves each pull answered at most once, and by its deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.poll = LongPoll()
        self.channels = [MemoryChannel(), MemoryChannel()]
        self.now_ms = 0
        self.answered: list[int] = []
        self.open: dict[int, tuple[MemoryChannel, int, int, bool]] = {}
        self.number = 0

    @rule(channel=st.integers(0, 1), queue=st.integers(0, 2), wait_ms=st.integers(0, 20), wanted=st.booleans())
    def hold(self, channel, queue, wait_ms, wanted):
        number = self.number = self.number + 1

        def retry(final: bool) -> bool:
            if final or wanted:
                assert number in self.open, "answered twice, or after its channel was gone"
                del self.open[number]
            return final or wanted

        self.open[number] = (self.channels[channel], queue, self.now_ms + wait_ms, wanted)
        self.poll.hold(Hold(self.channels[channel], ("T", queue), self.now_ms + wait_ms, retry))

    @rule(queues=st.lists(st.integers(0, 2), max_size=3))
    def arrive(self, queues):
        self.poll.arrived([("T", queue) for queue in queues])
        self.poll.drain()
        assert not [1 for _, queue, _, wanted in self.open.values() if wanted and queue in queues]

    @rule(ms=st.integers(0, 10))
    def pass_time(self, ms):
        self.now_ms += ms
        self.poll.expire(self.now_ms)
        assert not [1 for _, _, deadline_ms, _ in self.open.values() if deadline_ms <= self.now_ms]

    @rule(channel=st.integers(0, 1))
    def forget(self, channel):
        self.poll.forget(self.channels[channel])
        self.open = {n: kept for n, kept in self.open.items() if kept[0] is not self.channels[channel]}

    @invariant()
    def agrees(self):
        assert self.poll.check() == []
        assert len(self.poll) == len(self.open)


TestHolds = Holds.TestCase
TestHolds.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
