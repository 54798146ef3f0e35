"""Requests for actions and their answers, in one process."""

from multiprocessing import Pipe

from collectx.transport.inference_channel import InferenceChannel


def test_a_request_may_name_any_slot_of_many_workers():
    """A thousand workers with 64 slots each have more than 16 bits can number."""
    channel, (trainer, end) = InferenceChannel(1), Pipe()
    client, server = channel.client(0, incarnation=2**31), channel.server()
    client.connect(trainer)
    client.post(group=0, slot=65_599, step=7, pointer=2**40)
    (request,) = server.receive()
    assert request == (2**40, 2**31, 7, 0, 0, 65_599)
    server.reply(request)
    assert client.wait(0)
    channel.close()
    for each in (trainer, end):
        each.close()
