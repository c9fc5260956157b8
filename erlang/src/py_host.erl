%% @private Starts Python with the application and stops it with the application.
-module(py_host).
-behaviour(gen_server).
-export([start_link/0, loop/1, loops/0, count/0]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

-define(LOOPS, {?MODULE, loops}).

start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Returns the loop with a number, modulo the number of loops.
loop(Number) ->
    Loops = loops(),
    element(1 + Number rem tuple_size(Loops), Loops).

%% @doc Returns all loops.
loops() ->
    case persistent_term:get(?LOOPS, undefined) of
        undefined -> error(not_running);
        Loops -> Loops
    end.

count() ->
    tuple_size(loops()).

init([]) ->
    process_flag(trap_exit, true),
    Environment = fun(Key, Default) -> application:get_env(erlang_python, Key, Default) end,
    Loops = Environment(event_loop_pool_size, 1),
    Paths = [unicode:characters_to_binary(Path) || Path <- Environment(paths, [])],
    Ref = make_ref(),
    ok = py_nif:nif_start(Ref, Loops, Environment(queue_bound, 1000000), Paths, Environment(spin, 0)),
    receive
        {py_started, Ref, ok} ->
            persistent_term:put(?LOOPS, list_to_tuple([py_nif:nif_loop(N) || N <- lists:seq(0, Loops - 1)])),
            {ok, []};
        {py_started, Ref, {error, Text}} ->
            {stop, {python, Text}}
    end.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_request}, State}.

handle_cast(_Request, State) ->
    {noreply, State}.

%% Calls in progress may run on for a while. The rest are cancelled; their callers get {error, cancelled} or
%% {error, stopped}.
terminate(_Reason, _State) ->
    persistent_term:erase(?LOOPS),
    Ref = make_ref(),
    ok = py_nif:nif_stop(Ref, application:get_env(erlang_python, stop_timeout, 5000)),
    receive
        {py_stopped, Ref, _Remains} -> ok
    end.
