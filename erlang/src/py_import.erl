%% @doc Modules that are imported when the application starts, and directories where Python looks for modules.
-module(py_import).
-behaviour(gen_server).
-export([start_link/0, ensure_imported/1, add_path/1, is_imported/1]).
-export([init/1, handle_call/3, handle_cast/2]).

start_link() -> gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% @doc Imports a module, for all contexts and loops: they share the interpreter.
ensure_imported(Module) ->
    case py_nif:call(py_host:loop(0), process, true, {importlib, import_module, [Module]}, #{}, infinity) of
        {ok, _} -> ok;
        Error -> Error
    end.

%% @doc Adds a directory to the start of sys.path.
add_path(Path) ->
    Binary = unicode:characters_to_binary(Path),
    case py_nif:source(py_host:loop(0), context, eval,
                       {<<"__import__('sys').path.insert(0, _path)">>, #{<<"_path">> => Binary}}, infinity) of
        {ok, _} -> ok;
        Error -> Error
    end.

is_imported(Module) ->
    {ok, Is} = py_nif:source(py_host:loop(0), context, eval,
                             {<<"_name in __import__('sys').modules">>, #{<<"_name">> => Module}}, infinity),
    Is.

init([]) ->
    case [{Module, Error} || Module <- application:get_env(erlang_python, imports, []),
                             Error <- [ensure_imported(Module)], Error =/= ok] of
        [] -> {ok, []};
        [{Module, {error, Reason}} | _] -> {stop, {import, Module, Reason}}
    end.

handle_call(_Request, _From, State) -> {reply, {error, unknown_request}, State}.
handle_cast(_Request, State) -> {noreply, State}.
