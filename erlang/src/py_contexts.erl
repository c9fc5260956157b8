%% @private Keeps the contexts of the application, and starts those that end.
-module(py_contexts).
-behaviour(gen_server).
-export([start_link/0, start/1, stop/0, started/0, all/0, watch/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(ALL, {?MODULE, all}).

start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

start(Count) -> gen_server:call(?MODULE, {start, Count}, infinity).
stop() -> gen_server:call(?MODULE, stop, infinity).
started() -> all() =/= {}.

%% @doc Returns the contexts, as a tuple.
all() -> persistent_term:get(?ALL, {}).

%% @doc Forgets the thread of a context when its process ends, however that happens. The thread ends with its last
%% reference.
watch(Context) -> gen_server:cast(?MODULE, {watch, Context}).

init([]) ->
    process_flag(trap_exit, true),
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    put_all([]),
    %% As many as can run at the same time outside of Python's lock.
    Default = min(erlang:system_info(schedulers), 4),
    start_all(application:get_env(erlang_python, num_contexts, Default), []).

start_all(0, Pids) ->
    put_all(Pids),
    {ok, Pids};
start_all(Count, Pids) ->
    case py_context:start_link() of
        {ok, Pid} -> start_all(Count - 1, [Pid | Pids]);
        {error, Reason} -> {stop, Reason}
    end.

put_all(Pids) -> persistent_term:put(?ALL, list_to_tuple(Pids)).

handle_call({start, Count}, _From, Pids) when length(Pids) >= Count ->
    {reply, {ok, Pids}, Pids};
handle_call({start, Count}, _From, Pids) ->
    case start_all(Count - length(Pids), Pids) of
        {ok, All} -> {reply, {ok, All}, All};
        {stop, Reason} -> {reply, {error, Reason}, Pids}
    end;
handle_call(stop, _From, Pids) ->
    put_all([]),
    [py_context:stop(Pid) || Pid <- Pids],
    {reply, ok, []};
handle_call(_Request, _From, State) ->
    {reply, {error, unknown_request}, State}.

handle_cast({watch, Context}, State) ->
    erlang:monitor(process, Context),
    {noreply, State};
handle_cast(_Request, State) ->
    {noreply, State}.

%% Another takes its place, with a thread and a namespace of its own.
handle_info({'EXIT', Pid, Reason}, Pids) ->
    case lists:member(Pid, Pids) of
        true when Reason =/= normal ->
            case start_all(1, lists:delete(Pid, Pids)) of
                {ok, All} -> {noreply, All};
                {stop, Why} -> {stop, Why, lists:delete(Pid, Pids)}
            end;
        _ ->
            Left = lists:delete(Pid, Pids),
            put_all(Left),
            {noreply, Left}
    end;
handle_info({'DOWN', _, process, Context, _}, State) ->
    ets:delete(?MODULE, Context),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

terminate(_Reason, Pids) ->
    persistent_term:erase(?ALL),
    [catch py_context:stop(Pid) || Pid <- Pids],
    ok.
