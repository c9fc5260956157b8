%% @doc Channels of bytes: Python gets `bytes', also for UTF-8.
-module(py_byte_channel).
-export([new/0, new/1, send/2, recv/1, recv/2, try_receive/1, close/1, info/1]).

new() -> py_channel:new().
new(Options) -> py_channel:new(Options).

send(Channel, Bytes) -> py_channel:send(Channel, {bytes, iolist_to_binary(Bytes)}).

recv(Channel) -> recv(Channel, infinity).
recv(Channel, Timeout) -> plain(py_channel:recv(Channel, Timeout)).
try_receive(Channel) -> plain(py_channel:try_receive(Channel)).

%% Python's bytes arrive as binaries.
plain({ok, {bytes, Bytes}}) -> {ok, Bytes};
plain(Answer) -> Answer.

close(Channel) -> py_channel:close(Channel).
info(Channel) -> py_channel:info(Channel).
