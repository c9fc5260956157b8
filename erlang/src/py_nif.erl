%% @doc The native functions. All return at once; answers come as messages. Programs use the module `py'.
-module(py_nif).
-export([event_loop_exec/2, event_loop_eval/2, event_loop_exec/3, event_loop_eval/3]).
-export([call/6, source/5, submit/6, wait/2]).
-export([nif_start/5, nif_stop/2, nif_loop/1, nif_counts/0, nif_number/1, nif_worker/1, nif_worker_stop/1,
         nif_interrupt/2, nif_stats/1, nif_submit/9, nif_submit_large/9, nif_source/8, nif_answer/3, nif_serve/0,
         nif_register/2, nif_is_object/1, nif_measure/1, nif_times/0, nif_question_thread/1]).
-on_load(load/0).


-define(QUESTION, '$py_question').

load() ->
    File = case os:getenv("ERLANG_PYTHON_NIF") of
        false ->
            Folder = case code:priv_dir(erlang_python) of
                {error, bad_name} -> filename:join([filename:dirname(code:which(?MODULE)), "..", "priv"]);
                Found -> Found
            end,
            filename:join(Folder, "py_nif");
        Given ->
            Given
    end,
    erlang:load_nif(File, 0).

%% @doc Runs statements in the namespace of the calling process.
event_loop_exec(Loop, Code) ->
    event_loop_exec(Loop, Code, infinity).

event_loop_exec(Loop, Code, Timeout) ->
    case source(Loop, process, exec, {Code, #{}}, Timeout) of
        {ok, _} -> ok;
        Error -> Error
    end.

%% @doc Evaluates an expression in the namespace of the calling process.
event_loop_eval(Loop, Code) ->
    event_loop_eval(Loop, Code, infinity).

event_loop_eval(Loop, Code, Timeout) ->
    source(Loop, process, eval, {Code, #{}}, Timeout).

%% @doc Runs source code and waits for the result.
source(Thread, Space, Kind, {Code, Locals}, Timeout) ->
    {Keeps, Is} = case Kind of
        eval -> {false, true};
        eval_ref -> {true, true};
        exec -> {false, false}
    end,
    Ref = make_ref(),
    case nif_source(Thread, Space, Ref, Is, Code, Locals, get(?QUESTION), Keeps) of
        ok -> wait(Ref, Timeout);
        Error -> Error
    end.

%% @doc Calls a function and waits for the result.
call(Thread, Space, Keeps, {Module, Function, Arguments}, Keywords, Timeout) ->
    Ref = make_ref(),
    case submit(Thread, Space, Ref, Keeps, {Module, Function, Arguments}, Keywords) of
        ok -> wait(Ref, Timeout);
        Error -> Error
    end.

%% @doc Submits a call. The answer is a message {async_result, Ref, {ok, Value} | {error, Reason}}.
submit(Thread, Space, Ref, Keeps, {Module, Function, Arguments}, Keywords) ->
    Question = get(?QUESTION),
    case nif_submit(Thread, Space, Ref, Module, Function, Arguments, Keywords, Question, Keeps) of
        %% Copying takes longer than a scheduler should be occupied.
        large -> nif_submit_large(Thread, Space, Ref, Module, Function, Arguments, Keywords, Question, Keeps);
        Answer -> Answer
    end.

%% @doc Waits for the answer to a call. If Python is stopped and a call never returns, nobody else would answer.
wait(Ref, Timeout) ->
    receive
        {async_result, Ref, Result} -> Result
    after 0 ->
        Monitor = erlang:monitor(process, py_host),
        receive
            {async_result, Ref, Result} ->
                erlang:demonitor(Monitor, [flush]),
                Result;
            {'DOWN', Monitor, process, _, _} ->
                receive
                    {async_result, Ref, Result} -> Result
                after 0 ->
                    {error, stopped}
                end
        after Timeout ->
            erlang:demonitor(Monitor, [flush]),
            {error, timeout}
        end
    end.

nif_start(_, _, _, _, _) -> erlang:nif_error(not_loaded).
nif_stop(_, _) -> erlang:nif_error(not_loaded).
nif_loop(_) -> erlang:nif_error(not_loaded).
nif_counts() -> erlang:nif_error(not_loaded).
nif_number(_) -> erlang:nif_error(not_loaded).
nif_worker(_) -> erlang:nif_error(not_loaded).
nif_worker_stop(_) -> erlang:nif_error(not_loaded).
nif_interrupt(_, _) -> erlang:nif_error(not_loaded).
nif_stats(_) -> erlang:nif_error(not_loaded).
nif_submit(_, _, _, _, _, _, _, _, _) -> erlang:nif_error(not_loaded).
nif_submit_large(_, _, _, _, _, _, _, _, _) -> erlang:nif_error(not_loaded).
nif_source(_, _, _, _, _, _, _, _) -> erlang:nif_error(not_loaded).
nif_answer(_, _, _) -> erlang:nif_error(not_loaded).
nif_serve() -> erlang:nif_error(not_loaded).
nif_register(_, _) -> erlang:nif_error(not_loaded).
nif_is_object(_) -> erlang:nif_error(not_loaded).
nif_measure(_) -> erlang:nif_error(not_loaded).
nif_times() -> erlang:nif_error(not_loaded).
nif_question_thread(_) -> erlang:nif_error(not_loaded).
