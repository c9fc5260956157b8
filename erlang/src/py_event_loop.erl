%% @doc Tasks on Python's event loops: functions and coroutines, started from any process.
-module(py_event_loop).
-export([get_loop/0, get_nif_ref/1, create_task/3, create_task/4, create_task/5, await/1, await/2, run/3, run/4,
         spawn_task/3, spawn_task/4, exec/1, exec/2, eval/1, eval/2]).

-define(AWAIT, 5000).

%% @doc Returns the loop of the calling process. A process keeps its loop.
get_loop() ->
    {ok, home()}.

home() ->
    py_host:loop(py_nif:nif_number(self())).

%% @doc Returns what native functions use: the loop itself.
get_nif_ref(Loop) ->
    Loop.

%% @doc Starts a function or coroutine on the loop of the calling process. `await/1' waits for its result; or receive
%% {async_result, Ref, {ok, Value} | {error, Reason}}.
create_task(Module, Function, Arguments) ->
    start(home(), Module, Function, Arguments, #{}).

%% @doc With keyword arguments, returns a reference. With a loop first, returns {ok, Reference}.
create_task(Loop, Module, Function, Arguments) when is_reference(Loop) ->
    {ok, start(Loop, Module, Function, Arguments, #{})};
create_task(Module, Function, Arguments, Keywords) ->
    start(home(), Module, Function, Arguments, Keywords).

create_task(Loop, Module, Function, Arguments, Keywords) ->
    {ok, start(Loop, Module, Function, Arguments, Keywords)}.

start(Loop, Module, Function, Arguments, Keywords) ->
    Ref = make_ref(),
    case py_nif:submit(Loop, process, Ref, false, {Module, Function, Arguments}, Keywords) of
        ok -> ok;
        %% A refusal is an answer too, so that a task has one place to look for its outcome.
        Refused -> self() ! {async_result, Ref, Refused}
    end,
    Ref.

%% @doc Waits for the result of a task, for at most five seconds.
await(Ref) ->
    await(Ref, ?AWAIT).

await(Ref, Timeout) ->
    py_nif:wait(Ref, Timeout).

%% @doc Starts a task and waits for its result. Options: timeout, kwargs.
run(Module, Function, Arguments) ->
    run(Module, Function, Arguments, #{}).

run(Module, Function, Arguments, Options) ->
    Options1 = if is_list(Options) -> maps:from_list(Options); true -> Options end,
    Keywords = maps:get(kwargs, Options1, #{}),
    await(create_task(Module, Function, Arguments, Keywords), maps:get(timeout, Options1, ?AWAIT)).

%% @doc Starts a task whose result nobody waits for. Errors are logged.
spawn_task(Module, Function, Arguments) ->
    spawn_task(Module, Function, Arguments, #{}).

spawn_task(Module, Function, Arguments, Keywords) ->
    py_nif:submit(home(), process, none, true, {Module, Function, Arguments}, Keywords).

exec(Code) -> exec(home(), Code).
exec(Loop, Code) -> py_nif:event_loop_exec(Loop, Code).
eval(Code) -> eval(home(), Code).
eval(Loop, Code) -> py_nif:event_loop_eval(Loop, Code).
