%% Faults that such a bridge can have, each seen in practice.
-module(faults_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([executor_wakes_the_loop/1, long_tasks_do_not_stall/1, concurrent_timers/1, system_exit_and_keyboard_interrupt/1,
         reload_is_seen/1, many_namespaces_are_found_quickly/1, long_names/1, blocking_call_stalls_one_thread_only/1,
         queue_is_bounded/1, answers_reach_their_callers/1, sleeps_are_not_early/1, other_awaitables/1, text_of_exceptions/1,
         finalizer_calls_erlang/1, cancelled_sleep_and_timeouts/1]).

all() ->
    [executor_wakes_the_loop, long_tasks_do_not_stall, concurrent_timers, system_exit_and_keyboard_interrupt, reload_is_seen,
     many_namespaces_are_found_quickly, long_names, blocking_call_stalls_one_thread_only, queue_is_bounded,
     answers_reach_their_callers, sleeps_are_not_early, other_awaitables, text_of_exceptions, finalizer_calls_erlang,
     cancelled_sleep_and_timeouts].

init_per_suite(Config) ->
    application:load(erlang_python),
    ok = application:set_env(erlang_python, event_loop_pool_size, 3),
    ok = application:set_env(erlang_python, queue_bound, 5000),
    {ok, _} = application:ensure_all_started(erlang_python),
    Config.

end_per_suite(_) ->
    application:stop(erlang_python),
    application:unset_env(erlang_python, event_loop_pool_size),
    application:unset_env(erlang_python, queue_bound).

run(Function, Arguments) ->
    py_event_loop:await(py_event_loop:create_task('__main__', Function, Arguments), 60000).

%% Wake-ups from other threads, after the first one too.
executor_wakes_the_loop(_) ->
    ok = py_event_loop:exec(<<"
import asyncio, socket
async def in_executor(n):
    loop = asyncio.get_running_loop()
    one = await loop.run_in_executor(None, lambda: n * 2)
    two = await asyncio.to_thread(lambda: n * 3)
    found = await loop.getaddrinfo('127.0.0.1', 80, type=socket.SOCK_STREAM)
    return [one, two, found[0][4][0]]
">>),
    [{ok, [Two, Three, <<"127.0.0.1">>]} = run(in_executor, [N]) || N <- lists:seq(1, 30), Two <- [N * 2], Three <- [N * 3]],
    Refs = [{N, py_event_loop:create_task('__main__', in_executor, [N])} || N <- lists:seq(1, 50)],
    [begin Two = N * 2, {ok, [Two | _]} = py_event_loop:await(Ref, 60000) end || {N, Ref} <- Refs].

%% More internal steps than any fixed number of iterations.
long_tasks_do_not_stall(_) ->
    ok = py_event_loop:exec(<<"
import asyncio
async def many(n):
    for _ in range(n):
        await asyncio.sleep(0)
    return n
async def chained(n):
    return 0 if n == 0 else 1 + await chained(n - 1)
">>),
    {ok, 20000} = run(many, [20000]),
    {ok, 500} = run(chained, [500]),
    Refs = [py_event_loop:create_task('__main__', many, [300]) || _ <- lists:seq(1, 100)],
    [{ok, 300} = py_event_loop:await(Ref, 60000) || Ref <- Refs].

concurrent_timers(_) ->
    Me = self(),
    [spawn_link(fun() ->
        Refs = [py_event_loop:create_task(asyncio, sleep, [N / 1000, N]) || N <- lists:seq(1, 50)],
        [{ok, N} = py_event_loop:await(Ref, 60000) || {N, Ref} <- lists:zip(lists:seq(1, 50), Refs)],
        Me ! done
    end) || _ <- lists:seq(1, 20)],
    [receive done -> ok after 60000 -> error(lost) end || _ <- lists:seq(1, 20)].

system_exit_and_keyboard_interrupt(_) ->
    ok = py_event_loop:exec(<<"
import asyncio
def leave(error): raise error(3)
async def leave_later(name):
    await asyncio.sleep(0)
    raise {'SystemExit': SystemExit, 'KeyboardInterrupt': KeyboardInterrupt}[name](3)
def leave_now(name):
    raise {'SystemExit': SystemExit, 'KeyboardInterrupt': KeyboardInterrupt}[name](3)
">>),
    [begin
         {error, {Name, "3"}} = run(Function, [Name]),
         {ok, 2} = py_event_loop:await(py_event_loop:create_task(builtins, max, [[1, 2]]), 60000)
     end || Name <- ['SystemExit', 'KeyboardInterrupt'], Function <- [leave_now, leave_later], _ <- [1, 2, 3]],
    {error, {'SystemExit', _}} = py:exec(<<"raise SystemExit('bye')">>),
    {ok, 3} = py:eval(<<"1 + 2">>).

reload_is_seen(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    ok = py_import:add_path(Folder),
    File = filename:join(Folder, "reloaded.py"),
    ok = file:write_file(File, "def version(): return 1\n"),
    {ok, 1} = py_event_loop:await(py_event_loop:create_task(reloaded, version, []), 60000),
    ok = file:write_file(File, "def version(): return 'two'\n"),
    ok = py:reload(reloaded),
    {ok, <<"two">>} = py_event_loop:await(py_event_loop:create_task(reloaded, version, []), 60000),
    {ok, <<"two">>} = py:call(reloaded, version, []).

%% Looking up a namespace takes as long with 10,000 as with one.
many_namespaces_are_found_quickly(_) ->
    Me = self(),
    {_, Before, _} = py_nif:nif_counts(),
    Pids = [spawn_link(fun() ->
        %% The queue is bounded, so a refusal is tried again.
        Define = fun F() ->
            case py_event_loop:exec(<<"mine = ", (integer_to_binary(N))/binary>>) of
                ok -> ok;
                {error, queue_full} -> timer:sleep(5), F()
            end
        end,
        Define(),
        Me ! {ready, self()},
        receive stop -> ok end
    end) || N <- lists:seq(1, 10000)],
    [receive {ready, Pid} -> ok after 120000 -> error(hangs) end || Pid <- Pids],
    {_, Now, _} = py_nif:nif_counts(),
    ?assertEqual(Before + 10000, Now),
    ok = py_event_loop:exec(<<"def f(): return 1">>),
    Work = fun() -> [{ok, 1} = run(f, []) || _ <- lists:seq(1, 500)] end,
    Work(),
    {Many, _} = timer:tc(Work),
    [begin unlink(Pid), exit(Pid, kill) end || Pid <- Pids],
    test_support:until(fun() -> {_, Left, _} = py_nif:nif_counts(), Left =< Before + 1 end),
    {Few, _} = timer:tc(Work),
    ct:log("500 calls: ~p us with 10,000 namespaces, ~p us with one", [Many, Few]),
    %% A scan would be a thousand times slower; a busy machine is a few times.
    ?assert(Many < 20 * Few + 1000000).

long_names(_) ->
    Name = <<"f_", (binary:copy(<<"x">>, 5000))/binary>>,
    ok = py_event_loop:exec(<<"def ", Name/binary, "(): return 'found'">>),
    {ok, <<"found">>} = run(Name, []),
    Long = list_to_atom("g_" ++ lists:duplicate(250, $y)),
    ok = py_event_loop:exec(<<"def ", (atom_to_binary(Long))/binary, "(): return 'too'">>),
    {ok, <<"too">>} = run(Long, []).

%% A blocking function delays the processes of its loop, and nobody else.
blocking_call_stalls_one_thread_only(_) ->
    {ok, [One, Two | _]} = py_event_loop_pool:get_all_loops(),
    {ok, Blocked} = py_event_loop:create_task(One, time, sleep, [5]),
    Start = erlang:monotonic_time(millisecond),
    {ok, Ref} = py_event_loop:create_task(Two, math, sqrt, [4.0]),
    {ok, 2.0} = py_event_loop:await(Ref, 60000),
    Context = py:context(1),
    spawn(fun() -> py:call(Context, time, sleep, [5]) end),
    {ok, 2.0} = py:call(py:context(2), math, sqrt, [4.0]),
    ?assert(erlang:monotonic_time(millisecond) - Start < 4000),
    {ok, none} = py_event_loop:await(Blocked, 60000).

queue_is_bounded(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    {ok, Blocked} = py_event_loop:create_task(Loop, time, sleep, [0.5]),
    Refs = [py_event_loop:create_task(math, sqrt, [N]) || N <- lists:seq(1, 8000)],
    Results = [py_event_loop:await(Ref, 60000) || Ref <- Refs],
    {ok, none} = py_event_loop:await(Blocked, 60000),
    Refused = length([1 || {error, queue_full} <- Results]),
    ?assert(Refused >= 2900),
    ?assertEqual(8000, Refused + length([1 || {ok, _} <- Results])),
    {ok, 2.0} = py_event_loop:await(py_event_loop:create_task(math, sqrt, [4]), 60000).

answers_reach_their_callers(_) ->
    ok = py:exec(<<"1">>),
    Me = self(),
    [spawn_link(fun() ->
        ok = py_event_loop:exec(<<"
import asyncio, random
async def echo(who, n):
    await asyncio.sleep(random.random() / 200)
    return [who, n]
">>),
        Refs = [{N, py_event_loop:create_task('__main__', echo, [Who, N])} || N <- lists:seq(1, 100)],
        [{ok, [Who, N]} = py_event_loop:await(Ref, 60000) || {N, Ref} <- Refs],
        receive Unexpected -> error({unexpected, Unexpected}) after 0 -> ok end,
        Me ! done
    end) || Who <- lists:seq(1, 30)],
    [receive done -> ok after 120000 -> error(hangs) end || _ <- lists:seq(1, 30)].

sleeps_are_not_early(_) ->
    ok = py_event_loop:exec(<<"
import asyncio, time
async def slept(seconds):
    begun = time.monotonic()
    await asyncio.sleep(seconds)
    return time.monotonic() - begun - seconds
">>),
    [begin {ok, Late} = run(slept, [Seconds]), ?assert(Late >= 0) end
     || Seconds <- [0.0002, 0.0005, 0.001, 0.0035, 0.01], _ <- lists:seq(1, 20)].

%% Not only coroutines can be awaited.
other_awaitables(_) ->
    ok = py_event_loop:exec(<<"
import asyncio
class Later:
    def __await__(self):
        yield from asyncio.sleep(0.01).__await__()
        return 'awaited'
def later(): return Later()
def future():
    f = asyncio.get_running_loop().create_future()
    f.get_loop().call_later(0.01, f.set_result, 'set')
    return f
def gathered(): return asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))
">>),
    {ok, <<"awaited">>} = run(later, []),
    {ok, <<"set">>} = run(future, []),
    {ok, [1, 2]} = run(gathered, []).

text_of_exceptions(_) ->
    ok = py_event_loop:exec(<<"
class Odd(Exception):
    def __str__(self): return '\\udcff'
class Worse(Exception):
    def __str__(self): raise ValueError('no text')
def odd(): raise Odd
def worse(): raise Worse
">>),
    {error, {'Odd', Text}} = run(odd, []),
    ?assert(is_list(Text)),
    {error, {'Worse', _}} = run(worse, []).

%% A finalizer may run at any time, and call Erlang then.
finalizer_calls_erlang(_) ->
    Me = self(),
    py:register_function(finalized, fun([N]) -> Me ! {finalized, N}, {ok, 4} = py:eval(<<"2 + 2">>), ok end),
    ok = py:exec(<<"
import erlang
class Loud:
    def __init__(self, n): self.n = n
    def __del__(self): erlang.finalized(self.n)
for n in range(20):
    loud = Loud(n)
    loud.me = loud
del loud
import gc
gc.collect()
">>),
    [receive {finalized, N} -> ok after 60000 -> error(lost) end || N <- lists:seq(0, 19)],
    py:unregister_function(finalized).

cancelled_sleep_and_timeouts(_) ->
    ok = py_event_loop:exec(<<"
import asyncio
async def limited():
    try:
        async with asyncio.timeout(0.02):
            await asyncio.sleep(10)
    except TimeoutError:
        return 'limited'
async def grouped():
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(10))
            raise KeyError('one')
    except* KeyError as errors:
        count = len(errors.exceptions)
    return count
async def cancelled():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)
">>),
    {ok, <<"limited">>} = run(limited, []),
    {ok, 1} = run(grouped, []),
    {error, cancelled} = run(cancelled, []).
