%% @private The host comes first: everything else needs it, and it must end last.
-module(erlang_python_sup).
-behaviour(supervisor).
-export([start_link/0, init/1]).

start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

init([]) ->
    %% Stopping takes as long as the calls in progress may take, and a second to cancel them.
    Stop = application:get_env(erlang_python, stop_timeout, 5000) + 5000,
    Child = fun(Module, Shutdown) ->
        #{id => Module, start => {Module, start_link, []}, shutdown => Shutdown, type => worker}
    end,
    Children = [Child(py_state, 5000), Child(py_logger, 5000), Child(py_callback, 5000), Child(py_host, Stop),
                Child(py_contexts, 5000), Child(py_import, 5000)],
    {ok, {#{strategy => rest_for_one, intensity => 3, period => 10}, Children}}.
