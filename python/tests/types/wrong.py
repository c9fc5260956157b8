"""Errors that a type checker should find. It is not run."""

import pelton


async def number() -> int:
    return 1


text: str = pelton.run(number())  # expect: assignment
pelton.run(number)  # expect: arg-type
pelton.run(number(), loop=None)  # expect: call-arg
loop = pelton.new_event_loop()
loop.stats()["rounds"]  # expect: typeddict-item
loop.on_slow_callback("soon", print)  # expect: arg-type
loop.on_slow_callback(1, number)  # expect: arg-type
pelton.Loop(5)  # expect: call-arg
pelton.install(loop)  # expect: call-arg


class Mine(pelton.Handle):  # expect: misc
    pass
