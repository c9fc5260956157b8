%% Starting and stopping, under load: nothing hangs, nothing crashes, every caller gets an answer.
-module(lifecycle_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, end_per_testcase/2]).
-export([restart/1, stop_under_load/1, stop_with_a_stuck_call/1, init_stop_under_load/1, halt_under_load/1, bad_settings/1,
         not_started/1, extension_modules_load/1, churn/1]).

all() ->
    [restart, stop_under_load, stop_with_a_stuck_call, bad_settings, not_started, extension_modules_load, churn, init_stop_under_load,
     halt_under_load].

end_per_testcase(_, _) ->
    application:stop(erlang_python),
    [application:unset_env(erlang_python, Key) || Key <- [stop_timeout, imports, event_loop_pool_size]],
    ok.

start() ->
    {ok, _} = application:ensure_all_started(erlang_python).

restart(_) ->
    [begin
         start(),
         {ok, 2.0} = py:call(math, sqrt, [4]),
         {ok, 3.0} = py_event_loop:run(math, sqrt, [9]),
         py:register_function(one, fun([]) -> 1 end),
         {ok, 1} = py:call(erlang, call, [one]),
         ok = application:stop(erlang_python)
     end || _ <- lists:seq(1, 5)],
    %% What the previous host made is gone, and its handles are refused.
    start(),
    {ok, Loop} = py_event_loop:get_loop(),
    ok = application:stop(erlang_python),
    {ok, Ref} = py_event_loop:create_task(Loop, math, sqrt, [4]),
    {error, stopped} = py_event_loop:await(Ref, 60000).

stop_under_load(_) ->
    application:load(erlang_python),
    application:set_env(erlang_python, stop_timeout, 100),
    start(),
    Me = self(),
    Pids = [spawn_link(fun() -> load(Me) end) || _ <- lists:seq(1, 10)],
    timer:sleep(300),
    {Time, ok} = timer:tc(fun() -> application:stop(erlang_python) end),
    ?assert(Time < 20000000),
    [receive {stopped, Pid} -> ok after 60000 -> error(no_answer) end || Pid <- Pids].

load(Me) ->
    Work = fun F() ->
        Results = try
            Refs = [py_event_loop:create_task(math, sqrt, [N]) || N <- lists:seq(1, 50)],
            Sleeping = py_event_loop:create_task(asyncio, sleep, [60]),
            [py_event_loop:await(Ref, 60000) || Ref <- Refs ++ case rand:uniform(20) of 1 -> [Sleeping]; _ -> [] end]
        catch
            error:not_running -> [{error, stopped}]
        end,
        case [Reason || {error, Reason} <- Results] of
            [] -> F();
            Reasons -> true = lists:all(fun(Reason) -> lists:member(Reason, [stopped, cancelled]) end, Reasons)
        end
    end,
    Work(),
    Me ! {stopped, self()}.

%% Native code that does not return cannot be ended; its caller is told nevertheless, and Python can be started again.
stop_with_a_stuck_call(_) ->
    application:load(erlang_python),
    application:set_env(erlang_python, stop_timeout, 50),
    start(),
    Me = self(),
    Context = py:context(1),
    spawn_link(fun() -> Me ! {stuck, py:call(Context, time, sleep, [20])} end),
    timer:sleep(200),
    ok = application:stop(erlang_python),
    receive {stuck, {error, _}} -> ok after 15000 -> error(no_answer) end,
    start(),
    {ok, 2.0} = py:call(math, sqrt, [4]).

bad_settings(_) ->
    application:load(erlang_python),
    application:set_env(erlang_python, imports, [no_such_module]),
    {error, _} = application:ensure_all_started(erlang_python),
    application:unset_env(erlang_python, imports),
    application:set_env(erlang_python, event_loop_pool_size, 0),
    {error, _} = application:ensure_all_started(erlang_python),
    application:unset_env(erlang_python, event_loop_pool_size),
    start(),
    {ok, 2.0} = py:call(math, sqrt, [4]).

not_started(_) ->
    application:stop(erlang_python),
    ?assertError(_, py:call(math, sqrt, [4])),
    ?assertError(not_running, py_event_loop:create_task(math, sqrt, [4])).

%% They find the Python library, although the virtual machine loads ours privately.
extension_modules_load(_) ->
    start(),
    [begin {ok, _} = py:call_ref(importlib, import_module, [Module]) end
     || Module <- ['_socket', '_ssl', '_json', '_decimal', '_ctypes', 'unicodedata']].

%% Processes that come and go, contexts that end, and tasks of dead callers leave nothing behind.
churn(_) ->
    start(),
    Round = fun() ->
        Pids = [spawn(fun() ->
            py_event_loop:exec(<<"import asyncio\nbig = 'x' * 10000\nasync def f(): await asyncio.sleep(0.01); return big">>),
            py_event_loop:create_task('__main__', f, []),
            py:spawn_call('__main__', f, []),
            timer:sleep(rand:uniform(30)),
            exit(kill)
        end) || _ <- lists:seq(1, 100)],
        Context = py:context(1),
        exit(Context, kill),
        test_support:until(fun() -> not lists:any(fun is_process_alive/1, Pids) end),
        test_support:until(fun() -> {_, Spaces, _} = py_nif:nif_counts(), Spaces =< 2 end)
    end,
    [Round() || _ <- lists:seq(1, 5)],
    Before = resident(),
    Atoms = erlang:system_info(atom_count),
    Rounds = list_to_integer(os:getenv("PELTON_ERLANG_CHURN", "10")),
    [Round() || _ <- lists:seq(1, Rounds)],
    After = resident(),
    ct:log("~p KiB before, ~p KiB after ~p rounds", [Before, After, Rounds]),
    ?assert(After - Before < 65536),
    ?assert(erlang:system_info(atom_count) - Atoms < 50).

resident() ->
    {ok, Status} = file:read_file("/proc/self/status"),
    {match, [Number]} = re:run(Status, "VmRSS:\\s+(\\d+)", [{capture, [1], list}]),
    list_to_integer(Number).

-define(LOAD,
        "{ok, _} = application:ensure_all_started(erlang_python), application:set_env(erlang_python, stop_timeout, 200), "
        "py:register_function(back, fun([X]) -> {ok, Y} = py:eval(<<\"x+1\">>, #{x => X}), Y end), "
        "W = fun F() -> [py_event_loop:create_task(math, sqrt, [N]) || N <- lists:seq(1, 100)], "
        "py:call(erlang, call, [back, 1], #{}, 1000), py_event_loop:create_task(time, sleep, [0.01]), F() end, "
        "[spawn(W) || _ <- lists:seq(1, 8)], timer:sleep(500), io:format(\"ready~n\"), ").

init_stop_under_load(_) ->
    [?assertMatch({0, <<"ready", _/binary>>}, test_support:stop_peer(test_support:peer(?LOAD "init:stop()."))) || _ <- [1, 2, 3]].

halt_under_load(_) ->
    [?assertMatch({7, <<"ready", _/binary>>}, test_support:stop_peer(test_support:peer(?LOAD "halt(7).")))
     || _ <- [1, 2, 3]],
    [?assertMatch({3, _}, test_support:stop_peer(test_support:peer(?LOAD "halt(3, [{flush, false}]).")))
     || _ <- [1, 2]].
