%% @private Handles calls from Python to Erlang: each in a process of its own.
-module(py_callback).
-behaviour(gen_server).
-export([start_link/0, register/2, unregister/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(QUESTION, '$py_question').

start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

%% Functions get the list of arguments.
register(Name, Function) when is_function(Function, 1); is_tuple(Function) ->
    Key = name(Name),
    ets:insert(?MODULE, {Key, Function}),
    py_nif:nif_register(Key, true).

unregister(Name) ->
    Key = name(Name),
    ets:delete(?MODULE, Key),
    py_nif:nif_register(Key, false).

name(Name) when is_atom(Name) -> atom_to_binary(Name);
name(Name) when is_list(Name) -> unicode:characters_to_binary(Name);
name(Name) when is_binary(Name) -> Name.

init([]) ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {read_concurrency, true}]),
    ok = py_nif:nif_serve(),
    [?MODULE:register(Name, Function) || {Name, Function} <- py_state:functions() ++ py_channel:functions()],
    {ok, #{}}.

handle_call(_Request, _From, State) ->
    {reply, {error, unknown_request}, State}.

handle_cast(_Request, State) ->
    {noreply, State}.

%% The question is answered by the process, and if it ends without an answer, here.
handle_info({erlang_callback, Question, Name, Arguments}, State) ->
    {_, Monitor} = spawn_monitor(fun() -> answer(Question, Name, Arguments) end),
    {noreply, State#{Monitor => Question}};
handle_info({'DOWN', Monitor, process, _, Reason}, State) ->
    case maps:take(Monitor, State) of
        {Question, State1} ->
            Reason =:= normal orelse py_nif:nif_answer(Question, false, text("~tp", [Reason])),
            {noreply, State1};
        error ->
            {noreply, State}
    end;
handle_info(_, State) ->
    {noreply, State}.

answer(Question, Name, Arguments) ->
    %% Calls that this process makes to Python are made by the thread that waits for it.
    put(?QUESTION, Question),
    case ets:lookup(?MODULE, Name) of
        [{_, Function}] ->
            try apply_to(Function, Arguments) of
                %% Nobody may be waiting any more.
                {'$py_undo', Value, Undo} -> py_nif:nif_answer(Question, true, Value) orelse Undo();
                Value -> py_nif:nif_answer(Question, true, Value)
            catch
                Class:Reason:_ -> py_nif:nif_answer(Question, false, text("~tp:~tp", [Class, Reason]))
            end;
        [] ->
            py_nif:nif_answer(Question, false, text("no function is registered as ~ts", [Name]))
    end.

apply_to({Module, Function}, Arguments) -> Module:Function(Arguments);
apply_to(Function, Arguments) -> Function(Arguments).

text(Format, Arguments) ->
    unicode:characters_to_binary(io_lib:format(Format, Arguments)).
