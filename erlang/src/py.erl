%% @doc Python from Erlang.
%%
%% Calls run on contexts: threads that run Python one call after the other. `__main__' is the namespace of the calling
%% process. Results are {ok, Value} or {error, Reason}; an exception is {error, {'ClassName', "message"}}.
-module(py).
-export([call/3, call/4, call/5, cast/3, cast/4, spawn_call/3, spawn_call/4, await/1, await/2, eval/1, eval/2, eval/3,
         exec/1, exec/2, stream/3, stream/4, stream_eval/1, stream_start/3, stream_start/4, stream_cancel/1,
         async_call/3, async_call/4, async_await/1, async_await/2, async_gather/1, async_gather/2, parallel/1,
         register_function/2, register_function/3, unregister_function/1, state_fetch/1, state_store/2, state_remove/1,
         state_keys/0, state_clear/0, state_incr/1, state_incr/2, state_decr/1, state_decr/2, context/0, context/1,
         start_contexts/0, start_contexts/1, stop_contexts/0, contexts_started/0, interrupt/1, call_ref/3, eval_ref/1,
         call_method/3, getattr/2, to_term/1, is_ref/1, reload/1, version/0, memory_stats/0, gc/0, gc/1,
         activate_venv/1, venv_info/0, execution_mode/0, subinterp_supported/0, configure_logging/0,
         configure_logging/1]).

%% A process that answers Python uses the thread that waits for it.
thread() ->
    case get('$py_question') of
        undefined -> py_context:get_nif_ref(py_context_router:get_context());
        Question -> py_nif:nif_question_thread(Question)
    end.

%% @doc Calls a function. `Timeout' is how long this process waits, not how long the function runs: see interrupt/1.
call(Module, Function, Arguments) -> call(Module, Function, Arguments, #{}).
call(Context, Module, Function, Arguments) when is_pid(Context) ->
    py_nif:call(py_context:get_nif_ref(Context), process, false, {Module, Function, Arguments}, #{}, infinity);
call(Module, Function, Arguments, Keywords) -> call(Module, Function, Arguments, Keywords, infinity).
call(Context, Module, Function, Arguments, Options) when is_pid(Context) ->
    Keywords = maps:get(kwargs, Options, #{}),
    Timeout = maps:get(timeout, Options, infinity),
    py_nif:call(py_context:get_nif_ref(Context), process, false, {Module, Function, Arguments}, Keywords, Timeout);
call(Module, Function, Arguments, Keywords, Timeout) ->
    py_nif:call(thread(), process, false, {Module, Function, Arguments}, Keywords, Timeout).

%% @doc Calls a function and forgets about it. Errors are logged. Returns ok, or {error, Reason} if it was refused.
cast(Module, Function, Arguments) -> cast(Module, Function, Arguments, #{}).
cast(Module, Function, Arguments, Keywords) ->
    py_nif:submit(thread(), process, none, true, {Module, Function, Arguments}, Keywords).

%% @doc Starts a call and returns a reference for await/1.
spawn_call(Module, Function, Arguments) -> spawn_call(Module, Function, Arguments, #{}).
spawn_call(Module, Function, Arguments, Keywords) ->
    Ref = make_ref(),
    case py_nif:submit(thread(), process, Ref, false, {Module, Function, Arguments}, Keywords) of
        ok -> ok;
        Refused -> self() ! {async_result, Ref, Refused}
    end,
    Ref.

await(Ref) -> await(Ref, 5000).
await(Ref, Timeout) -> py_nif:wait(Ref, Timeout).

%% @doc Evaluates an expression, with local variables and for at most so many milliseconds.
eval(Code) -> eval(Code, #{}).
eval(Context, Code) when is_pid(Context) ->
    py_nif:source(py_context:get_nif_ref(Context), process, eval, {Code, #{}}, infinity);
eval(Code, Locals) -> eval(Code, Locals, infinity).
eval(Context, Code, Locals) when is_pid(Context) ->
    py_nif:source(py_context:get_nif_ref(Context), process, eval, {Code, Locals}, infinity);
eval(Code, Locals, Timeout) ->
    py_nif:source(thread(), process, eval, {Code, Locals}, Timeout).

%% @doc Runs statements.
exec(Code) -> executed(py_nif:source(thread(), process, exec, {Code, #{}}, infinity)).
exec(Context, Code) ->
    executed(py_nif:source(py_context:get_nif_ref(Context), process, exec, {Code, #{}}, infinity)).

executed({ok, _}) -> ok;
executed(Error) -> Error.

%% @doc Returns all items of a generator.
stream(Module, Function, Arguments) -> stream(Module, Function, Arguments, #{}).
stream(Module, Function, Arguments, Keywords) ->
    {ok, Ref} = stream_start(Module, Function, Arguments, Keywords),
    collect(Ref, []).

collect(Ref, Items) ->
    receive
        {py_stream, Ref, {data, Item}} -> collect(Ref, [Item | Items]);
        {py_stream, Ref, done} -> {ok, lists:reverse(Items)};
        {py_stream, Ref, {error, Reason}} -> {error, Reason}
    end.

%% @doc Returns all items of an iterable expression.
stream_eval(Code) -> eval([<<"list(">>, Code, <<")">>]).

%% @doc Sends the items of a generator, asynchronous or not, to the calling process: {py_stream, Ref, {data, Item}}, then
%% {py_stream, Ref, done} or {py_stream, Ref, {error, Reason}}. If the process ends, the generator is closed.
stream_start(Module, Function, Arguments) -> stream_start(Module, Function, Arguments, #{}).
stream_start(Module, Function, Arguments, Keywords) ->
    Sink = self(),
    Ref = make_ref(),
    {Pump, Monitor} = spawn_monitor(fun() -> pump(Sink, Ref, Module, Function, Arguments, Keywords) end),
    receive
        {Ref, started} ->
            erlang:demonitor(Monitor, [flush]),
            {ok, Ref};
        {'DOWN', Monitor, process, Pump, Reason} ->
            error(Reason)
    end.

pump(Sink, Ref, Module, Function, Arguments, Keywords) ->
    Monitor = erlang:monitor(process, Sink),
    true = ets:insert(py_callback, {{stream, Ref}, self()}),
    Task = py_event_loop:create_task(erlang, '_stream_call', [Module, Function, Arguments, Keywords, Sink, Ref]),
    Sink ! {Ref, started},
    pumping(Sink, Ref, Monitor, Task),
    ets:delete(py_callback, {stream, Ref}).

pumping(Sink, Ref, Monitor, Task) ->
    receive
        {async_result, Task, {ok, _}} -> Sink ! {py_stream, Ref, done};
        {async_result, Task, {error, Reason}} -> Sink ! {py_stream, Ref, {error, Reason}};
        {'DOWN', Monitor, process, _, _} ->
            py_event_loop:create_task(erlang, '_stream_cancel', [Ref]),
            pumping(Sink, Ref, make_ref(), Task);
        cancel ->
            py_event_loop:create_task(erlang, '_stream_cancel', [Ref]),
            pumping(Sink, Ref, Monitor, Task)
    end.

%% @doc Ends a stream early. Its last message is {py_stream, Ref, {error, cancelled}}, unless it was done before.
stream_cancel(Ref) ->
    case ets:take(py_callback, {stream, Ref}) of
        [] -> {error, not_found};
        [{_, Pump}] -> Pump ! cancel, ok
    end.

%% @doc Starts a coroutine on an event loop.
async_call(Module, Function, Arguments) -> py_event_loop:create_task(Module, Function, Arguments).
async_call(Module, Function, Arguments, Keywords) ->
    py_event_loop:create_task(Module, Function, Arguments, Keywords).

async_await(Ref) -> await(Ref).
async_await(Ref, Timeout) -> await(Ref, Timeout).

%% @doc Runs coroutines at the same time. Returns {ok, Values}, or the first error.
async_gather(Calls) -> async_gather(Calls, 5000).
async_gather(Calls, Timeout) -> all([await(Ref, Timeout) || Ref <- [start_one(Call) || Call <- Calls]]).

start_one({Module, Function, Arguments}) -> async_call(Module, Function, Arguments);
start_one({Module, Function, Arguments, Keywords}) -> async_call(Module, Function, Arguments, Keywords).

all(Results) ->
    case [Error || {error, _} = Error <- Results] of
        [] -> {ok, [Value || {ok, Value} <- Results]};
        [Error | _] -> Error
    end.

%% @doc Makes calls on all contexts at the same time. Returns {ok, Results}, each {ok, Value} or {error, Reason}.
parallel(Calls) ->
    Contexts = py_contexts:all(),
    Numbered = lists:zip(lists:seq(0, length(Calls) - 1), Calls),
    Refs = [begin
        Thread = py_context:get_nif_ref(element(1 + Number rem tuple_size(Contexts), Contexts)),
        Ref = make_ref(),
        case py_nif:submit(Thread, process, Ref, false, {Module, Function, Arguments}, #{}) of
            ok -> ok;
            Refused -> self() ! {async_result, Ref, Refused}
        end,
        Ref
    end || {Number, {Module, Function, Arguments}} <- Numbered],
    {ok, [await(Ref, infinity) || Ref <- Refs]}.

%% @doc Lets Python call a function: erlang.call(Name, ...), or erlang.Name(...). It gets the list of arguments.
register_function(Name, Function) -> py_callback:register(Name, Function).
register_function(Name, Module, Function) -> py_callback:register(Name, {Module, Function}).
unregister_function(Name) -> py_callback:unregister(Name).

state_fetch(Key) -> py_state:fetch(Key).
state_store(Key, Value) -> py_state:store(Key, Value).
state_remove(Key) -> py_state:remove(Key).
state_keys() -> py_state:keys().
state_clear() -> py_state:clear().
state_incr(Key) -> py_state:incr(Key).
state_incr(Key, Amount) -> py_state:incr(Key, Amount).
state_decr(Key) -> py_state:decr(Key).
state_decr(Key, Amount) -> py_state:decr(Key, Amount).

context() -> py_context_router:get_context().
%% @doc Returns the context with a number, from 1.
context(Number) -> py_context_router:get_context(Number - 1).
start_contexts() -> start_contexts(erlang:system_info(schedulers)).
start_contexts(Count) -> py_contexts:start(Count).
stop_contexts() -> py_contexts:stop().
contexts_started() -> py_contexts:started().

%% @doc Interrupts the call that a context is making. That call's result is {error, interrupted}.
interrupt(Context) -> py_context:interrupt(Context).

%% @doc Like call/3, but the result stays in Python, and this returns a reference to it.
call_ref(Module, Function, Arguments) ->
    py_nif:call(thread(), process, true, {Module, Function, Arguments}, #{}, infinity).
eval_ref(Code) -> py_nif:source(thread(), process, eval_ref, {Code, #{}}, infinity).

call_method(Object, Name, Arguments) -> call(erlang, '_call_method', [Object, Name, Arguments]).
getattr(Object, Name) -> call(builtins, getattr, [Object, Name]).
to_term(Object) -> call(erlang, '_identity', [Object]).
is_ref(Term) -> py_nif:nif_is_object(Term).

%% @doc Reloads a module if it was imported. The next call uses it.
reload(Module) ->
    case call(erlang, '_reload', [Module]) of
        {ok, _} -> ok;
        Error -> Error
    end.

version() -> call(platform, python_version, []).
memory_stats() -> call(erlang, '_gather_memory', []).
gc() -> gc(2).
gc(Generation) -> call(erlang, '_collect', [Generation]).

%% @doc Uses the packages of a virtual environment from now on.
activate_venv(Path) ->
    case call(erlang, '_activate', [unicode:characters_to_binary(Path)]) of
        {ok, _} -> ok;
        Error -> Error
    end.

venv_info() ->
    eval(<<"{'active': sys.prefix != sys.base_prefix or bool(os.environ.get('VIRTUAL_ENV')), 'prefix': sys.prefix, "
           "'executable': sys.executable, 'sys_path': list(sys.path)}">>,
         #{<<"sys">> => element(2, eval_ref(<<"__import__('sys')">>)),
           <<"os">> => element(2, eval_ref(<<"__import__('os')">>))}).

execution_mode() -> worker.
subinterp_supported() -> false.

%% @doc Passes Python's log records to Erlang's logger.
configure_logging() -> configure_logging(#{}).
configure_logging(Options) ->
    Level = case maps:get(level, Options, info) of
        debug -> 10;
        info -> 20;
        warning -> 30;
        error -> 40;
        critical -> 50;
        Number -> Number
    end,
    case call(erlang, setup_logging, [Level]) of
        {ok, _} -> ok;
        Error -> Error
    end.
