%% @private
-module(erlang_python_app).
-behaviour(application).
-export([start/2, stop/1]).

start(_Type, _Arguments) ->
    erlang_python_sup:start_link().

stop(_State) ->
    ok.
