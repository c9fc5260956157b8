%% @doc Values that Erlang and Python share. Each operation is atomic.
-module(py_state).
-behaviour(gen_server).
-export([start_link/0, fetch/1, store/2, remove/1, keys/0, clear/0, incr/1, incr/2, decr/1, decr/2, functions/0]).
-export([init/1, handle_call/3, handle_cast/2]).

start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Returns {ok, Value}, or {error, not_found}.
fetch(Key) ->
    case ets:lookup(?MODULE, Key) of
        [{_, Value}] -> {ok, Value};
        [] -> {error, not_found}
    end.

store(Key, Value) ->
    true = ets:insert(?MODULE, {Key, Value}),
    ok.

remove(Key) ->
    true = ets:delete(?MODULE, Key),
    ok.

keys() ->
    [Key || {Key, _} <- ets:tab2list(?MODULE)].

clear() ->
    true = ets:delete_all_objects(?MODULE),
    ok.

%% @doc Adds to a number, which starts at 0, and returns the sum.
incr(Key) -> incr(Key, 1).
incr(Key, Amount) -> ets:update_counter(?MODULE, Key, Amount, {Key, 0}).
decr(Key) -> incr(Key, -1).
decr(Key, Amount) -> incr(Key, -Amount).

%% What Python calls.
functions() ->
    [{<<"_py_state_fetch">>, fun([Key]) -> case fetch(Key) of {ok, Value} -> Value; _ -> none end end},
     {<<"_py_state_store">>, fun([Key, Value]) -> store(Key, Value) end},
     {<<"_py_state_remove">>, fun([Key]) -> remove(Key) end},
     {<<"_py_state_keys">>, fun([]) -> keys() end},
     {<<"_py_state_clear">>, fun([]) -> clear() end},
     {<<"_py_state_incr">>, fun([Key, Amount]) -> incr(Key, Amount) end}].

init([]) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}, {write_concurrency, true}]),
    {ok, []}.

handle_call(_Request, _From, State) -> {reply, {error, unknown_request}, State}.
handle_cast(_Request, State) -> {noreply, State}.
