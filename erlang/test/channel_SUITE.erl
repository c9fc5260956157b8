%% Channels between Erlang and Python.
-module(channel_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([erlang_only/1, to_python/1, from_python/1, bound/1, closing/1, owner_ends/1, tasks/1, cancelled_receivers_take_nothing/1,
         late_receivers_take_nothing/1, bytes/1, many/1]).

all() ->
    [erlang_only, to_python, from_python, bound, closing, owner_ends, tasks, cancelled_receivers_take_nothing,
     late_receivers_take_nothing, bytes, many].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlang_python),
    Config.

end_per_suite(_) ->
    application:stop(erlang_python).

erlang_only(_) ->
    {ok, Channel} = py_channel:new(),
    {error, empty} = py_channel:try_receive(Channel),
    {error, timeout} = py_channel:recv(Channel, 10),
    [ok = py_channel:send(Channel, N) || N <- lists:seq(1, 10)],
    #{queue_size := 10, closed := false} = py_channel:info(Channel),
    [{ok, N} = py_channel:recv(Channel) || N <- lists:seq(1, 10)],
    Me = self(),
    spawn_link(fun() -> Me ! {got, py_channel:recv(Channel, 60000)} end),
    ok = py_channel:send(Channel, #{a => 1}),
    receive {got, {ok, #{a := 1}}} -> ok after 60000 -> error(hangs) end.

to_python(_) ->
    {ok, Channel} = py_channel:new(),
    ok = py_channel:send(Channel, {order, [1, 2], self()}),
    {ok, {<<"order">>, [1, 2], Self}} = py:eval(<<"__import__('erlang').Channel(c).receive()">>, #{c => Channel}),
    ?assertEqual(self(), Self),
    {ok, none} = py:eval(<<"__import__('erlang').Channel(c).try_receive()">>, #{c => Channel}),
    {error, {'TimeoutError', _}} = py:eval(<<"__import__('erlang').Channel(c).receive(0.01)">>, #{c => Channel}).

from_python(_) ->
    {ok, Channel} = py_channel:new(),
    {ok, true} = py:eval(<<"__import__('erlang').Channel(c).send({'a': [1]})">>, #{c => Channel}),
    {ok, #{<<"a">> := [1]}} = py_channel:recv(Channel, 60000).

bound(_) ->
    {ok, Channel} = py_channel:new(#{max_size => 1000}),
    Item = binary:copy(<<"x">>, 400),
    ok = py_channel:send(Channel, Item),
    ok = py_channel:send(Channel, Item),
    busy = py_channel:send(Channel, Item),
    {ok, false} = py:eval(<<"__import__('erlang').Channel(c).send('x' * 400)">>, #{c => Channel}),
    {ok, Item} = py_channel:recv(Channel),
    ok = py_channel:send(Channel, Item),
    #{size := Size, queue_size := 2} = py_channel:info(Channel),
    ?assert(Size =< 1000),
    {ok, Empty} = py_channel:new(#{max_size => 10}),
    ok = py_channel:send(Empty, Item).

closing(_) ->
    {ok, Channel} = py_channel:new(),
    ok = py_channel:send(Channel, last),
    ok = py_channel:close(Channel),
    {error, closed} = py_channel:send(Channel, more),
    {ok, [<<"last">>]} = py:eval(<<"list(__import__('erlang').Channel(c))">>, #{c => Channel}),
    {error, closed} = py_channel:recv(Channel),
    {error, closed} = py_channel:info(Channel),
    {error, {'ChannelClosed', _}} = py:eval(<<"__import__('erlang').Channel(c).receive()">>, #{c => Channel}),
    {error, {'ChannelClosed', _}} = py:eval(<<"__import__('erlang').Channel(c).send(1)">>, #{c => Channel}).

owner_ends(_) ->
    Me = self(),
    Owner = spawn(fun() -> {ok, Channel} = py_channel:new(), Me ! {channel, Channel}, receive stop -> ok end end),
    Channel = receive {channel, Made} -> Made after 60000 -> error(hangs) end,
    spawn_link(fun() -> Me ! {python, py:eval(<<"__import__('erlang').Channel(c).receive()">>, #{c => Channel})} end),
    exit(Owner, kill),
    receive {python, {error, {'ChannelClosed', _}}} -> ok after 60000 -> error(hangs) end.

tasks(_) ->
    {ok, Channel} = py_channel:new(),
    ok = py_event_loop:exec(<<"
import asyncio, erlang
async def total(pid):
    return sum([item async for item in erlang.Channel(pid)])
">>),
    Refs = [py_event_loop:create_task('__main__', total, [Channel]) || _ <- [1, 2, 3]],
    [ok = py_channel:send(Channel, N) || N <- lists:seq(1, 300)],
    ok = py_channel:close(Channel),
    Sums = [begin {ok, Sum} = py_event_loop:await(Ref, 60000), Sum end || Ref <- Refs],
    ?assertEqual(lists:sum(lists:seq(1, 300)), lists:sum(Sums)).

cancelled_receivers_take_nothing(_) ->
    {ok, Channel} = py_channel:new(),
    ok = py_event_loop:exec(<<"
import asyncio, erlang
async def give_up(pid, count):
    channel = erlang.Channel(pid)
    for _ in range(count):
        try:
            async with asyncio.timeout(0.01):
                await channel.async_receive()
        except TimeoutError:
            pass
    return count
">>),
    {ok, 5} = py_event_loop:await(py_event_loop:create_task('__main__', give_up, [Channel, 5]), 60000),
    [ok = py_channel:send(Channel, N) || N <- lists:seq(1, 8)],
    Received = [begin {ok, Item} = py_channel:recv(Channel, 60000), Item end || _ <- lists:seq(1, 8)],
    ?assertEqual(lists:seq(1, 8), lists:sort(Received)).

late_receivers_take_nothing(_) ->
    {ok, Channel} = py_channel:new(),
    Context = py:context(1),
    Me = self(),
    spawn_link(fun() -> Me ! {stuck, py:exec(Context, [<<"import erlang\nerlang.Channel(erlang.whereis('a_channel')).receive()">>])} end),
    register(a_channel, Channel),
    test_support:until(fun() -> py:interrupt(Context) =:= ok end),
    receive {stuck, {error, interrupted}} -> ok; {stuck, Other} -> ct:log("~p", [Other]) after 60000 -> error(hangs) end,
    ok = py_channel:send(Channel, kept),
    {ok, kept} = py_channel:recv(Channel, 60000).

bytes(_) ->
    {ok, Channel} = py_byte_channel:new(),
    ok = py_byte_channel:send(Channel, [<<"text">>, 0]),
    {ok, <<"b'text\\x00'">>} = py:eval(<<"repr(__import__('erlang').ByteChannel(c).receive())">>, #{c => Channel}),
    {ok, true} = py:eval(<<"__import__('erlang').ByteChannel(c).send(bytearray(b'back'))">>, #{c => Channel}),
    {ok, <<"back">>} = py_byte_channel:recv(Channel, 60000),
    {error, empty} = py_byte_channel:try_receive(Channel),
    #{queue_size := 0} = py_byte_channel:info(Channel),
    ok = py_byte_channel:close(Channel).

%% Many senders and receivers: each item is received once.
many(_) ->
    {ok, Channel} = py_channel:new(#{max_size => 2000}),
    Send = fun F(N) -> case py_channel:send(Channel, N) of ok -> ok; busy -> timer:sleep(1), F(N) end end,
    ok = py_event_loop:exec(<<"
import erlang
async def items(pid):
    return [item async for item in erlang.Channel(pid)]
">>),
    Refs = [py_event_loop:create_task('__main__', items, [Channel]) || _ <- [1, 2]],
    Me = self(),
    [spawn_link(fun() -> [Send(Who * 1000 + N) || N <- lists:seq(1, 200)], Me ! done end) || Who <- lists:seq(1, 5)],
    [receive done -> ok after 60000 -> error(hangs) end || _ <- lists:seq(1, 5)],
    ok = py_channel:close(Channel),
    Items = lists:append([begin {ok, Some} = py_event_loop:await(Ref, 60000), Some end || Ref <- Refs]),
    ?assertEqual(lists:sort([Who * 1000 + N || Who <- lists:seq(1, 5), N <- lists:seq(1, 200)]), lists:sort(Items)).
