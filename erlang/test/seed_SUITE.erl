%% The programs that users of erlang_python know, as they are written.
-module(seed_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([task_sends_its_result/1, definitions_persist/1, expressions/1, processes_are_isolated/1, exit_frees/1,
         both_forms_of_create_task/1, await_times_out/1, batches/1]).

all() ->
    [task_sends_its_result, definitions_persist, expressions, processes_are_isolated, exit_frees, both_forms_of_create_task,
     await_times_out, batches].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlang_python),
    Config.

end_per_suite(_) ->
    application:stop(erlang_python).

task_sends_its_result(_) ->
    Ref = py_event_loop:create_task(math, sqrt, [2.0]),
    receive
        {async_result, Ref, {ok, Root}} -> ?assert(abs(Root - 1.4142135623730951) < 1.0e-12)
    after 60000 -> error(no_answer)
    end.

definitions_persist(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    LoopRef = py_event_loop:get_nif_ref(Loop),
    ok = py_nif:event_loop_exec(LoopRef, <<"
import asyncio

async def process_data(items):
    results = []
    for item in items:
        await asyncio.sleep(0.01)  # Simulate async I/O
        results.append(item * 2)
    return results

# State persists across calls
call_count = 0

async def tracked_call(x):
    global call_count
    call_count += 1
    return {'result': x, 'call_number': call_count}
">>),
    {ok, Ref1} = py_event_loop:create_task(Loop, '__main__', process_data, [[1,2,3]]),
    {ok, [2,4,6]} = py_event_loop:await(Ref1),
    {ok, Ref2} = py_event_loop:create_task(Loop, '__main__', tracked_call, [42]),
    {ok, #{<<"result">> := 42, <<"call_number">> := 1}} = py_event_loop:await(Ref2).

expressions(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    LoopRef = py_event_loop:get_nif_ref(Loop),
    {ok, 100} = py_nif:event_loop_eval(LoopRef, <<"50 * 2">>),
    ok = py_nif:event_loop_exec(LoopRef, <<"config = {'timeout': 30}">>),
    {ok, #{<<"timeout">> := 30}} = py_nif:event_loop_eval(LoopRef, <<"config">>).

processes_are_isolated(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    LoopRef = py_event_loop:get_nif_ref(Loop),
    Pids = [spawn_monitor(fun() ->
        ok = py_nif:event_loop_exec(LoopRef, <<"my_id = ", (integer_to_binary(N))/binary>>),
        {ok, N} = py_nif:event_loop_eval(LoopRef, <<"my_id">>),
        ct:log("Process ~p has my_id = ~p~n", [self(), N])
    end) || N <- lists:seq(1, 5)],
    [receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason after 60000 -> error(hangs) end
     || {Pid, Monitor} <- Pids].

%% A namespace goes with its process, also while its tasks run; and they run to their end.
exit_frees(_) ->
    {_, Before, _} = py_nif:nif_counts(),
    Me = self(),
    Pids = [spawn(fun() ->
        ok = py_event_loop:exec(<<"import asyncio, erlang\nasync def late(pid):\n    await asyncio.sleep(0.2)\n    "
                                  "erlang.send(pid, value)\nvalue = 'still here'\n">>),
        py_event_loop:create_task('__main__', late, [Me]),
        Me ! {ready, self()},
        receive stop -> ok end
    end) || _ <- lists:seq(1, 20)],
    [receive {ready, Pid} -> ok after 60000 -> error(hangs) end || Pid <- Pids],
    {_, During, _} = py_nif:nif_counts(),
    ?assert(During >= Before + 20),
    [exit(Pid, kill) || Pid <- Pids],
    [receive <<"still here">> -> ok after 60000 -> error(hangs) end || _ <- Pids],
    test_support:until(fun() -> {_, After, _} = py_nif:nif_counts(), After =< Before end).

both_forms_of_create_task(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    {ok, Ref} = py_event_loop:create_task(Loop, builtins, max, [[1, 2]]),
    {ok, 2} = py_event_loop:await(Ref),
    Ref1 = py_event_loop:create_task(builtins, int, [<<"ff">>], #{base => 16}),
    {ok, 255} = py_event_loop:await(Ref1),
    Ref2 = py_event_loop:create_task(builtins, sorted, [[1, 3, 2]], #{reverse => true}),
    {ok, [3, 2, 1]} = py_event_loop:await(Ref2).

await_times_out(_) ->
    Ref = py_event_loop:create_task(asyncio, sleep, [3600]),
    {error, timeout} = py_event_loop:await(Ref, 50).

%% Many tasks per acquisition of Python's lock.
batches(_) ->
    {ok, Loop} = py_event_loop:get_loop(),
    {Tasks, _, Locks, _, _} = py_nif:nif_stats(Loop),
    Blocked = py_event_loop:create_task(time, sleep, [0.2]),
    Refs = [py_event_loop:create_task(math, sqrt, [N]) || N <- lists:seq(1, 2000)],
    {ok, none} = py_event_loop:await(Blocked, 60000),
    [{ok, _} = py_event_loop:await(Ref, 60000) || Ref <- Refs],
    {Tasks1, _, Locks1, _, _} = py_nif:nif_stats(Loop),
    ?assert(Tasks1 - Tasks >= 2001),
    ?assert(Locks1 - Locks < 200).
