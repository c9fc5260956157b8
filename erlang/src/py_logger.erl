%% @private Passes Python's log records to Erlang's logger.
-module(py_logger).
-behaviour(gen_server).
-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

init([]) -> {ok, []}.
handle_call(_Request, _From, State) -> {reply, {error, unknown_request}, State}.
handle_cast(_Request, State) -> {noreply, State}.

handle_info({py_log, Level, Name, Text}, State) ->
    logger:log(level(Level), "~ts", [Text], #{py_logger => Name, domain => [python]}),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.

level(Level) when Level >= 50 -> critical;
level(Level) when Level >= 40 -> error;
level(Level) when Level >= 30 -> warning;
level(Level) when Level >= 20 -> info;
level(_) -> debug.
