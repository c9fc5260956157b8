%% @doc All event loops. Each process has its own, chosen by its number; with several loops a blocking function delays only
%% the processes of one.
-module(py_event_loop_pool).
-export([get_loop/0, get_all_loops/0, get_stats/0, create_task/3, create_task/4, await/1, await/2, run/3, run/4,
         spawn_task/3, spawn_task/4, exec/1, eval/1]).

get_loop() -> py_event_loop:get_loop().

get_all_loops() ->
    {ok, tuple_to_list(py_host:loops())}.

%% @doc Returns the number of loops, and what each has done.
get_stats() ->
    Loops = tuple_to_list(py_host:loops()),
    Each = [begin
        {Tasks, Batches, Locks, Queued, Pending} = py_nif:nif_stats(Loop),
        #{tasks => Tasks, batches => Batches, locks => Locks, queued => Queued, pending => Pending}
    end || Loop <- Loops],
    #{num_loops => length(Loops), loops => Each}.

create_task(Module, Function, Arguments) -> py_event_loop:create_task(Module, Function, Arguments).
create_task(A, B, C, D) -> py_event_loop:create_task(A, B, C, D).
await(Ref) -> py_event_loop:await(Ref).
await(Ref, Timeout) -> py_event_loop:await(Ref, Timeout).
run(Module, Function, Arguments) -> py_event_loop:run(Module, Function, Arguments).
run(Module, Function, Arguments, Options) -> py_event_loop:run(Module, Function, Arguments, Options).
spawn_task(Module, Function, Arguments) -> py_event_loop:spawn_task(Module, Function, Arguments).
spawn_task(Module, Function, Arguments, Keywords) -> py_event_loop:spawn_task(Module, Function, Arguments, Keywords).
exec(Code) -> py_event_loop:exec(Code).
eval(Code) -> py_event_loop:eval(Code).
