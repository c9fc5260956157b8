%% The public functions.
-module(api_SUITE).
-include_lib("stdlib/include/assert.hrl").
-export([all/0, init_per_suite/1, end_per_suite/1]).
-export([calls/1, casts_and_spawned_calls/1, expressions_and_statements/1, namespace_of_the_process_everywhere/1, contexts/1,
         contexts_have_no_running_loop/1, ended_context_is_replaced/1, interrupting/1, interrupting_a_callback/1, streams/1, cancelled_stream/1,
         stream_of_a_dead_process/1, gathering/1, callbacks/1, nested_callbacks/1, deep_nesting/1, failing_callbacks/1,
         async_callbacks/1, callback_of_a_killed_process/1, callbacks_from_threads/1, registered_names/1, state/1, references/1,
         logging/1, memory_and_version/1, importing/1, semaphore/1, runs_and_pools/1, timeouts/1, virtual_environment/1,
         python_can_send/1]).

all() ->
    [calls, casts_and_spawned_calls, expressions_and_statements, namespace_of_the_process_everywhere, contexts,
     contexts_have_no_running_loop, ended_context_is_replaced, interrupting, interrupting_a_callback, streams, cancelled_stream,
     stream_of_a_dead_process, gathering, callbacks, nested_callbacks, deep_nesting, failing_callbacks, async_callbacks,
     callback_of_a_killed_process, callbacks_from_threads, registered_names, state, references, logging, memory_and_version,
     importing, semaphore, runs_and_pools, timeouts, virtual_environment, python_can_send].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlang_python),
    %% More than one, however many processors there are.
    {ok, _} = py:start_contexts(3),
    Config.

end_per_suite(_) ->
    application:stop(erlang_python).

calls(_) ->
    {ok, 4.0} = py:call(math, sqrt, [16]),
    {ok, <<"[1, 2]">>} = py:call(json, dumps, [[1, 2]]),
    {ok, <<"{\n \"a\": 1\n}">>} = py:call(<<"json">>, "dumps", [#{a => 1}], #{indent => 1}),
    {ok, <<"B">>} = py:call(builtins, 'str.upper', [<<"b">>]),
    {error, {'ModuleNotFoundError', _}} = py:call(no_such_module, f, []),
    {error, {'AttributeError', _}} = py:call(math, no_such_function, []),
    {error, {'TypeError', _}} = py:call(math, sqrt, []),
    {ok, 3} = py:call(py:context(2), builtins, len, [[1, 2, 3]]),
    ?assertError(badarg, py:call(math, sqrt, not_a_list)),
    ?assertError(badarg, py:call(math, sqrt, [1], not_a_map)).

casts_and_spawned_calls(_) ->
    Ref = py:spawn_call(math, sqrt, [9.0]),
    {ok, 3.0} = py:await(Ref, 60000),
    ok = py:cast(erlang, send, [self(), <<"cast">>]),
    receive <<"cast">> -> ok after 60000 -> error(lost) end,
    %% It sees the namespace of the caller, and sends nothing; errors are logged.
    ok = py:exec(<<"import erlang\ndef tell(pid): erlang.send(pid, 'from main')\ndef fail(): raise ValueError('logged')">>),
    ok = py:cast('__main__', tell, [self()]),
    receive <<"from main">> -> ok after 60000 -> error(lost) end,
    ok = logger:add_handler(py_cast, test_logger, #{config => self()}),
    ok = py:cast('__main__', fail, []),
    receive {logged, error, <<"erlang_python">>, Text} -> ?assertMatch({_, _}, binary:match(Text, <<"ValueError: logged">>))
    after 60000 -> error(lost) end,
    ok = logger:remove_handler(py_cast),
    receive {async_result, _, _} -> error(unexpected) after 0 -> ok end.

expressions_and_statements(_) ->
    {ok, 3} = py:eval(<<"1 + 2">>),
    {ok, 30} = py:eval(<<"a * b">>, #{a => 5, b => 6}),
    {ok, 7} = py:eval("3 + 4"),
    ok = py:exec(<<"counter = 0">>),
    [ok = py:exec(<<"counter += 1">>) || _ <- lists:seq(1, 10)],
    {ok, 10} = py:eval(<<"counter">>),
    {error, {'SyntaxError', _}} = py:exec(<<"def">>),
    {error, {'NameError', _}} = py:eval(<<"not_defined_here">>),
    {error, {'ValueError', _}} = py:exec(<<"a\0b">>).

%% A process has one namespace, on all threads.
namespace_of_the_process_everywhere(_) ->
    ok = py:exec(py:context(1), <<"async def shared(n): return n + base\nbase = 10">>),
    {ok, 10} = py:eval(py:context(2), <<"base">>),
    {ok, 11} = py_event_loop:await(py_event_loop:create_task('__main__', shared, [1]), 60000),
    {ok, 12} = py:call('__main__', shared, [2]),
    Me = self(),
    spawn_link(fun() -> Me ! {other, py:eval(<<"base">>)} end),
    receive {other, {error, {'NameError', _}}} -> ok after 60000 -> error(hangs) end.

contexts(_) ->
    {ok, One} = py_context:new(#{}),
    {ok, Two} = py_context:new(#{}),
    ok = py_context:exec(One, <<"x = 1">>),
    ok = py_context:exec(Two, <<"x = 2">>),
    Me = self(),
    %% Its users share the namespace of a context.
    spawn_link(fun() -> Me ! {py_context:eval(One, <<"x">>), py_context:eval(Two, <<"x + y">>, #{y => 1})} end),
    receive {{ok, 1}, {ok, 3}} -> ok after 60000 -> error(hangs) end,
    {ok, Thread} = py_context:call(One, threading, get_ident, []),
    {ok, Thread} = py_context:call(One, threading, get_ident, []),
    {ok, Other} = py_context:call(Two, threading, get_ident, []),
    ?assertNotEqual(Thread, Other),
    ok = py_context:stop(One),
    {error, no_context} = py_context:eval(One, <<"x">>),
    ok = py_context:destroy(Two),
    ok = py_context_router:bind_context(py:context(2)),
    ?assertEqual(py:context(2), py:context()),
    ok = py_context_router:unbind_context(),
    ?assertEqual(length(py_context_router:contexts()), py_context_router:num_contexts()),
    ?assert(py:contexts_started()).

contexts_have_no_running_loop(_) ->
    ok = py:exec(<<"import asyncio, erlang\nasync def add(a, b):\n    await asyncio.sleep(0)\n    return a + b">>),
    {ok, 3} = py:eval(<<"asyncio.run(add(1, 2))">>),
    {ok, 5} = py:eval(<<"erlang.run(add(2, 3))">>),
    {ok, <<"Loop">>} = py:eval(<<"type(erlang.new_event_loop()).__name__">>).

ended_context_is_replaced(_) ->
    Context = py:context(1),
    exit(Context, kill),
    test_support:until(fun() ->
        All = py_context_router:contexts(),
        length(All) >= 3 andalso not lists:member(Context, All)
    end),
    {ok, 2.0} = py:call(py:context(1), math, sqrt, [4.0]),
    %% Nothing is left of it, its thread included.
    test_support:until(fun() -> ets:lookup(py_contexts, Context) =:= [] end),
    Threads = threads(),
    {ok, Other} = py_context:new(#{}),
    Ref = py_context:get_nif_ref(Other),
    {ok, _} = py_context:eval(Other, <<"1">>),
    ?assert(is_reference(Ref)),
    exit(Other, kill),
    test_support:until(fun() -> erlang:garbage_collect(), ets:lookup(py_contexts, Other) =:= [] end),
    test_support:until(fun() -> threads() =< Threads end).

%% The threads of contexts.
threads() ->
    {ok, Tasks} = file:list_dir("/proc/self/task"),
    length([Task || Task <- Tasks, {ok, Name} <- [file:read_file("/proc/self/task/" ++ Task ++ "/comm")],
                    binary:match(Name, <<"pelton-pinned">>) =/= nomatch]).

interrupting(_) ->
    Context = py:context(1),
    {error, not_running} = py:interrupt(Context),
    Me = self(),
    spawn_link(fun() -> Me ! {stuck, py:exec(Context, <<"while True: pass">>)} end),
    test_support:until(fun() -> py:interrupt(Context) =:= ok end),
    receive {stuck, {error, interrupted}} -> ok after 60000 -> error(hangs) end,
    {ok, 1} = py:eval(Context, <<"1">>).

%% Also while it waits for Erlang.
interrupting_a_callback(_) ->
    Context = py:context(1),
    Me = self(),
    py:register_function(wait_for_ever, fun([]) -> Me ! {waiting, self()}, receive never -> ok end end),
    spawn_link(fun() -> Me ! {stuck, py:call(Context, erlang, call, [wait_for_ever])} end),
    Waiting = receive {waiting, Pid} -> Pid after 60000 -> error(hangs) end,
    test_support:until(fun() -> py:interrupt(Context) =:= ok end),
    receive {stuck, {error, interrupted}} -> ok after 60000 -> error(hangs) end,
    exit(Waiting, kill),
    py:unregister_function(wait_for_ever).

streams(_) ->
    {ok, [0, 1, 2]} = py:stream(builtins, range, [3]),
    {ok, [1, 4, 9]} = py:stream_eval(<<"(n * n for n in (1, 2, 3))">>),
    ok = py:exec(<<"
import sys, types
numbers = types.ModuleType('numbers_module')
exec('''
import asyncio
async def later(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i
def failing(n):
    yield n
    raise ValueError('after one')
def endless():
    try:
        while True: yield 1
    finally:
        ended.append(1)
ended = []
''', numbers.__dict__)
sys.modules['numbers_module'] = numbers
">>),
    {ok, Numbers} = py:stream(numbers_module, later, [200]),
    ?assertEqual(lists:seq(0, 199), Numbers),
    {error, {'ValueError', "after one"}} = py:stream(numbers_module, failing, [1]),
    {error, {'TypeError', _}} = py:stream(math, sqrt, [2]).

cancelled_stream(_) ->
    {ok, Ref} = py:stream_start(numbers_module, endless, []),
    receive {py_stream, Ref, {data, 1}} -> ok after 60000 -> error(hangs) end,
    ok = py:stream_cancel(Ref),
    ended(Ref),
    {error, not_found} = py:stream_cancel(Ref),
    test_support:until(fun() -> {ok, Ended} = py:call(numbers_module, 'ended.count', [1]), Ended =:= 1 end).

ended(Ref) ->
    receive
        {py_stream, Ref, {data, _}} -> ended(Ref);
        {py_stream, Ref, {error, cancelled}} -> ok
    after 60000 -> error(hangs)
    end.

stream_of_a_dead_process(_) ->
    Me = self(),
    Pid = spawn(fun() ->
        {ok, Ref} = py:stream_start(numbers_module, endless, []),
        receive {py_stream, Ref, _} -> Me ! started end,
        receive stop -> ok end
    end),
    receive started -> ok after 60000 -> error(hangs) end,
    exit(Pid, kill),
    test_support:until(fun() -> {ok, Ended} = py:call(numbers_module, 'ended.count', [1]), Ended =:= 2 end).

gathering(_) ->
    {ok, [1, 2]} = py:async_gather([{asyncio, sleep, [0.01, 1]}, {asyncio, sleep, [0.005, 2]}], 60000),
    {error, {'ValueError', _}} = py:async_gather([{asyncio, sleep, [0, 1]}, {math, sqrt, [-1]}], 60000),
    {ok, 7} = py:async_await(py:async_call(asyncio, sleep, [0, 7]), 60000),
    {ok, [{ok, 2.0}, {error, {'ValueError', _}}, {ok, 3.0}]} =
        py:parallel([{math, sqrt, [4]}, {math, sqrt, [-1]}, {math, sqrt, [9]}]),
    %% At the same time: none can go on alone.
    ok = py:exec(<<"import sys, threading, types\nm = types.ModuleType('barriers')\nm.barrier = threading.Barrier(3)\n"
                   "sys.modules['barriers'] = m">>),
    {ok, Places} = py:parallel([{barriers, 'barrier.wait', [60]} || _ <- lists:seq(1, 3)]),
    ?assertEqual([{ok, 0}, {ok, 1}, {ok, 2}], lists:sort(Places)).

callbacks(_) ->
    py:register_function(add, fun([A, B]) -> A + B end),
    py:register_function(reversed, lists, reverse),
    {ok, 5} = py:eval(<<"__import__('erlang').call('add', 2, 3)">>),
    {ok, 5} = py:eval(<<"__import__('erlang').add(2, 3)">>),
    {ok, [3, 2, 1]} = py:eval(<<"__import__('erlang').reversed(1, 2, 3)">>),
    ok = py:exec(<<"from erlang import add\nsum = add(10, 20)">>),
    {ok, 30} = py:eval(<<"sum">>),
    py:unregister_function(add),
    {error, {'AttributeError', _}} = py:eval(<<"__import__('erlang').add">>),
    {error, {'RuntimeError', _}} = py:eval(<<"__import__('erlang').call('add', 1, 2)">>).

%% Erlang calls Python, which calls Erlang, which calls Python, on one thread; each runs once.
nested_callbacks(_) ->
    py:register_function(outer, fun([N]) ->
        {ok, Value} = py:call('__main__', inner, [N]),
        %% The namespace is that of the handling process, so it gets the function along.
        Value
    end),
    py:register_function(evaluate, fun([Code]) -> {ok, Value} = py:eval(Code), Value end),
    Context = py:context(1),
    ok = py_context:exec(Context, <<"
import erlang
runs = 0
def twice(code):
    global runs
    runs += 1
    return erlang.evaluate(code) * 2
">>),
    {ok, 84} = py_context:call(Context, '__main__', twice, [<<"40 + 2">>]),
    {ok, 168} = py_context:call(Context, '__main__', twice, [<<"__import__('erlang').evaluate('80 + 4')">>]),
    {ok, 2} = py_context:eval(Context, <<"runs">>),
    %% On the thread of an event loop too.
    Ref = py_event_loop:create_task(erlang, call, [evaluate, <<"1 + 1">>]),
    {ok, 2} = py_event_loop:await(Ref, 60000),
    py:unregister_function(outer).

deep_nesting(_) ->
    py:register_function(descend, fun([N]) -> {ok, Value} = py:call(erlang, call, [descend_in_python, N]), Value end),
    py:register_function(descend_in_python, fun
        ([0]) -> 0;
        ([N]) -> case py:call(erlang, call, [descend_in_python, N - 1]) of
            {ok, Value} -> Value + 1;
            {error, {'RecursionError', _}} -> -1000;
            {error, _} -> -2000
        end
    end),
    {ok, 30} = py:call(erlang, call, [descend_in_python, 30]),
    {ok, Deep} = py:call(erlang, call, [descend_in_python, 100]),
    ?assert(Deep < 0),
    {ok, 5} = py:call(erlang, call, [descend_in_python, 5]).

failing_callbacks(_) ->
    py:register_function(fails, fun([]) -> error(on_purpose) end),
    {error, {'RuntimeError', Text}} = py:call(erlang, call, [fails]),
    ?assertEqual("error:on_purpose", Text),
    {ok, <<"caught">>} = py:eval(<<"__import__('builtins').eval('caught()', {'caught': caught})">>,
                                 #{caught => element(2, begin
                                     ok = py:exec(<<"
import erlang
def caught():
    try:
        erlang.call('fails')
    except RuntimeError as error:
        return 'caught'
">>),
                                     py:eval_ref(<<"caught">>)
                                 end)}),
    py:unregister_function(fails).

async_callbacks(_) ->
    py:register_function(slow, fun([N]) -> timer:sleep(20), {ok, V} = py:eval(<<"n + 1">>, #{n => N}), V end),
    ok = py_event_loop:exec(<<"
import asyncio, erlang
async def many(n):
    return await asyncio.gather(*(erlang.async_call('slow', i) for i in range(n)))
async def missing():
    return await erlang.async_call('no_such_function')
">>),
    {ok, Numbers} = py_event_loop:await(py_event_loop:create_task('__main__', many, [20]), 60000),
    ?assertEqual(lists:seq(1, 20), Numbers),
    {error, {'RuntimeError', _}} = py_event_loop:await(py_event_loop:create_task('__main__', missing, []), 60000),
    %% On a loop of the user's own.
    {ok, [1, 2]} = py:eval(<<"erlang.run(many(2))">>, #{}),
    py:unregister_function(slow).

callback_of_a_killed_process(_) ->
    py:register_function(dies, fun([]) -> exit(self(), kill), receive never -> ok end end),
    {error, {'RuntimeError', _}} = py:call(erlang, call, [dies]),
    py:unregister_function(dies).

callbacks_from_threads(_) ->
    py:register_function(square, fun([N]) -> {ok, V} = py:eval(<<"n * n">>, #{n => N}), V end),
    ok = py:exec(<<"
import erlang
from concurrent.futures import ThreadPoolExecutor
def squares(n):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(erlang.square, range(n)))
">>),
    {ok, Squares} = py:call('__main__', squares, [50]),
    ?assertEqual([N * N || N <- lists:seq(0, 49)], Squares),
    py:unregister_function(square).

registered_names(_) ->
    py:register_function('with_timeout', fun([]) -> timer:sleep(500), late end),
    {error, {'TimeoutError', _}} = py:eval(<<"__import__('erlang').call('with_timeout', timeout=0.02)">>),
    {error, {'ValueError', _}} = py:eval(<<"__import__('erlang').call('with_timeout', timeout=-1)">>),
    py:unregister_function('with_timeout').

state(_) ->
    ok = py:state_store(<<"k">>, [1, 2]),
    {ok, [1, 2]} = py:state_fetch(<<"k">>),
    {ok, [1, 2]} = py:eval(<<"__import__('erlang').state_fetch('k')">>),
    {ok, none} = py:eval(<<"__import__('erlang').state_store('from python', {'a': 1})">>, #{}),
    {ok, #{<<"a">> := 1}} = py:state_fetch(<<"from python">>),
    {error, not_found} = py:state_fetch(<<"missing">>),
    Me = self(),
    [spawn_link(fun() -> [py:state_incr(<<"hits">>) || _ <- lists:seq(1, 100)], Me ! done end) || _ <- lists:seq(1, 10)],
    {ok, _} = py:eval(<<"[__import__('erlang').state_incr('hits') for _ in range(100)]">>),
    [receive done -> ok after 60000 -> error(hangs) end || _ <- lists:seq(1, 10)],
    {ok, 1100} = py:state_fetch(<<"hits">>),
    1098 = py:state_decr(<<"hits">>, 2),
    ?assert(lists:member(<<"hits">>, py:state_keys())),
    ok = py:state_remove(<<"hits">>),
    ok = py:state_clear(),
    [] = py:state_keys().

references(_) ->
    {ok, Object} = py:call_ref(collections, 'Counter', [<<"aab">>]),
    ?assert(py:is_ref(Object)),
    ?assertNot(py:is_ref(make_ref())),
    {ok, [{<<"a">>, 2}]} = py:call_method(Object, most_common, [1]),
    {ok, #{<<"a">> := 2, <<"b">> := 1}} = py:to_term(Object),
    {ok, Name} = py:getattr(Object, <<"__doc__">>),
    ?assert(is_binary(Name)),
    {ok, List} = py:eval_ref(<<"[1]">>),
    {ok, none} = py:call_method(List, append, [2]),
    {ok, [1, 2]} = py:to_term(List).

logging(_) ->
    Me = self(),
    ok = logger:add_handler(py_test, test_logger, #{config => Me}),
    ok = py:configure_logging(#{level => info}),
    ok = py:exec(<<"import logging\nlogging.getLogger('app').warning('careful %d', 7)\nlogging.getLogger('app').debug('no')">>),
    receive {logged, warning, <<"app">>, <<"careful 7">>} -> ok after 60000 -> error(lost) end,
    ok = logger:remove_handler(py_test).

memory_and_version(_) ->
    {ok, <<"3.", _/binary>>} = py:version(),
    {ok, #{<<"gc_count">> := [_, _, _]}} = py:memory_stats(),
    {ok, Count} = py:gc(),
    ?assert(is_integer(Count)),
    worker = py:execution_mode(),
    false = py:subinterp_supported().

importing(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    ok = file:write_file(filename:join(Folder, "found_by_path.py"), "answer = lambda: 42\n"),
    ok = py_import:add_path(Folder),
    false = py_import:is_imported(found_by_path),
    ok = py_import:ensure_imported(found_by_path),
    true = py_import:is_imported(found_by_path),
    {ok, 42} = py:call(found_by_path, answer, []),
    {error, {'ModuleNotFoundError', _}} = py_import:ensure_imported(no_such_module).

semaphore(_) ->
    Semaphore = py_semaphore:new(2),
    ok = py_semaphore:acquire(Semaphore),
    {ok, done} = py_semaphore:with(Semaphore, fun() -> {error, busy} = py_semaphore:acquire(Semaphore), done end),
    1 = py_semaphore:current(Semaphore),
    ok = py_semaphore:acquire(Semaphore),
    Me = self(),
    spawn_link(fun() -> ok = py_semaphore:acquire(Semaphore, 60000), Me ! acquired end),
    {error, busy} = py_semaphore:acquire(Semaphore, 10),
    ok = py_semaphore:release(Semaphore),
    receive acquired -> ok after 60000 -> error(hangs) end.

runs_and_pools(_) ->
    {ok, 3.0} = py_event_loop:run(math, sqrt, [9]),
    {ok, [3, 1]} = py_event_loop:run(builtins, sorted, [[1, 3]], #{kwargs => #{reverse => true}, timeout => 60000}),
    {error, timeout} = py_event_loop:run(asyncio, sleep, [3600], [{timeout, 20}]),
    ok = py_event_loop:spawn_task(erlang, send, [self(), <<"spawned">>]),
    receive <<"spawned">> -> ok after 60000 -> error(lost) end,
    #{num_loops := Loops, loops := [#{tasks := _} | _]} = py_event_loop_pool:get_stats(),
    {ok, All} = py_event_loop_pool:get_all_loops(),
    ?assertEqual(Loops, length(All)),
    {ok, 2.0} = py_event_loop_pool:run(math, sqrt, [4]),
    ok = py_event_loop_pool:exec(<<"here = 1">>),
    {ok, 1} = py_event_loop_pool:eval(<<"here">>).

timeouts(_) ->
    {error, timeout} = py:call(time, sleep, [0.5], #{}, 20),
    %% A late answer stays in the mailbox, as that of any late reply.
    receive {async_result, _, {ok, none}} -> ok after 60000 -> error(lost) end,
    {error, timeout} = py:eval(<<"__import__('time').sleep(0.3)">>, #{}, 10),
    receive {async_result, _, {ok, none}} -> ok after 60000 -> error(lost) end.

virtual_environment(Config) ->
    {ok, #{<<"prefix">> := Prefix}} = py:venv_info(),
    ?assert(is_binary(Prefix)),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "no_venv"),
    {error, {'ValueError', _}} = py:activate_venv(Folder).

python_can_send(_) ->
    register(api_suite_process, self()),
    {ok, true} = py:eval(<<"__import__('erlang').send('api_suite_process', {'a': 1})">>),
    receive #{<<"a">> := 1} -> ok after 60000 -> error(lost) end,
    {error, {'ValueError', _}} = py:eval(<<"__import__('erlang').send('nobody_is_called_this', 1)">>),
    Dead = spawn(fun() -> ok end),
    test_support:until(fun() -> not is_process_alive(Dead) end),
    {ok, false} = py:eval(<<"__import__('erlang').send(pid, 1)">>, #{pid => Dead}),
    unregister(api_suite_process).
