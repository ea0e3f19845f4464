"""Threads that compute get the processors in the order in which they ask."""

import threading

from serving.engine.streams import Permits


def test_permits_are_given_in_the_order_in_which_they_are_asked_for():
    permits, order, pause = Permits(1), [], threading.Event()

    def work(number):
        with permits.permit():
            order.append(number)

    with permits.permit():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for waiting, thread in enumerate(threads, 1):
            thread.start()
            while len(permits._waiting) < waiting:
                pause.wait(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_a_permit_that_never_ends_keeps_nobody_for_ever():
    permits = Permits(1, patience_seconds=0.01)
    with permits.permit(), permits.permit():
        pass
    with permits.permit():
        pass
    assert permits._free == 1 and not permits._waiting
