%% @doc A context: a thread that runs Python one call after the other, without a running event loop, and its process.
%%
%% Its code may block, and may call `asyncio.run'. Calls of `py_context' use the namespace of the context, which all its
%% users share; those of `py' use that of the calling process.
-module(py_context).
-behaviour(gen_server).
-export([start_link/0, start_link/1, start_link/2, new/1, stop/1, destroy/1, call/4, call/5, call/6, eval/2, eval/3, eval/4,
         exec/2, exec/3, call_method/4, getattr/3, get_nif_ref/1, interrupt/1, stats/1]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

start_link() -> gen_server:start_link(?MODULE, [], []).
start_link(_Id) -> start_link().
start_link(_Id, _Mode) -> start_link().

%% @doc Starts a context that is not linked.
new(_Options) -> gen_server:start(?MODULE, [], []).

%% @doc Ends a context after the calls that were submitted before.
stop(Context) -> gen_server:stop(Context).
destroy(Context) -> stop(Context).

call(Context, Module, Function, Arguments) -> call(Context, Module, Function, Arguments, #{}).
call(Context, Module, Function, Arguments, Keywords) -> call(Context, Module, Function, Arguments, Keywords, infinity).

call(Context, Module, Function, Arguments, Keywords, Timeout) ->
    with(Context, fun(Thread) ->
        py_nif:call(Thread, context, false, {Module, Function, Arguments}, Keywords, Timeout)
    end).

eval(Context, Code) -> eval(Context, Code, #{}).
eval(Context, Code, Locals) -> eval(Context, Code, Locals, infinity).

eval(Context, Code, Locals, Timeout) ->
    with(Context, fun(Thread) -> py_nif:source(Thread, context, eval, {Code, Locals}, Timeout) end).

exec(Context, Code) -> exec(Context, Code, infinity).

exec(Context, Code, Timeout) ->
    with(Context, fun(Thread) ->
        case py_nif:source(Thread, context, exec, {Code, #{}}, Timeout) of
            {ok, _} -> ok;
            Error -> Error
        end
    end).

call_method(Context, Object, Name, Arguments) ->
    call(Context, erlang, '_call_method', [Object, Name, Arguments]).

getattr(Context, Object, Name) ->
    call(Context, builtins, getattr, [Object, Name]).

%% @doc Returns the thread of a context.
get_nif_ref(Context) when is_pid(Context) ->
    case ets:lookup(py_contexts, Context) of
        [{_, Thread}] -> Thread;
        [] -> error({no_context, Context})
    end;
get_nif_ref(Thread) when is_reference(Thread) ->
    Thread.

with(Context, Function) ->
    try get_nif_ref(Context) of
        Thread -> Function(Thread)
    catch
        error:{no_context, _} -> {error, no_context}
    end.

%% @doc Interrupts the call that the context is making. Returns ok, or {error, not_running}.
interrupt(Context) ->
    Ref = make_ref(),
    ok = py_nif:nif_interrupt(Ref, get_nif_ref(Context)),
    receive
        {py_interrupted, Ref, true} -> ok;
        {py_interrupted, Ref, false} -> {error, not_running}
    end.

stats(Context) ->
    {Tasks, Batches, Locks, Queued, Pending} = py_nif:nif_stats(get_nif_ref(Context)),
    #{tasks => Tasks, batches => Batches, locks => Locks, queued => Queued, pending => Pending}.

init([]) ->
    process_flag(trap_exit, true),
    Ref = make_ref(),
    ok = py_nif:nif_worker(Ref),
    receive
        {py_started, Ref, {ok, Thread}} ->
            true = ets:insert(py_contexts, {self(), Thread}),
            ok = py_contexts:watch(self()),
            {ok, Thread};
        {py_started, Ref, {error, Text}} ->
            {stop, {python, Text}}
    end.

handle_call(_Request, _From, State) -> {reply, {error, unknown_request}, State}.
handle_cast(_Request, State) -> {noreply, State}.

terminate(_Reason, Thread) ->
    %% The table goes with the application.
    catch ets:delete(py_contexts, self()),
    py_nif:nif_worker_stop(Thread),
    ok.
