%% Benchmarks from Erlang, messages included. Run by `cargo xtask bench erlang'.
-module(py_bench).
-export([main/1]).

main(Arguments) ->
    Windows = case Arguments of
        [Number | _] -> list_to_integer(Number);
        [] -> 9
    end,
    {ok, _} = application:ensure_all_started(erlang_python),
    Version = element(2, py:version()),
    io:format("OTP ~s, Python ~s, ~p schedulers, ~p windows; best and median~n",
              [erlang:system_info(otp_release), Version, erlang:system_info(schedulers), Windows]),
    ok = py_event_loop:exec(<<"async def nothing(): return 1">>),
    Cases = [
        {"math.sqrt, one process, 1,000 outstanding", "k/s", fun() -> rate(100000, 1000, fun sqrt/0) end},
        {"coroutine that does nothing, 1,000 outstanding", "k/s", fun() -> rate(50000, 1000, fun nothing/0) end},
        {"math.sqrt, 20 processes, 64 outstanding each", "k/s", fun() -> many(20, 5000, 64) end},
        {"math.sqrt, one outstanding, p50", "us", fun() -> latency(2000) end},
        {"py:call, one outstanding, p50", "us", fun() -> call_latency(2000) end}
    ],
    [begin
         Results = lists:sort([Run() || _ <- lists:seq(1, Windows)]),
         Best = case Unit of "us" -> hd(Results); _ -> lists:last(Results) end,
         io:format("~-50s ~10.1f ~10.1f ~s~n", [Name, Best, lists:nth((Windows + 1) div 2, Results), Unit])
     end || {Name, Unit, Run} <- Cases],
    namespaces(),
    times(),
    application:stop(erlang_python),
    halt(0).

sqrt() -> py_event_loop:create_task(math, sqrt, [2.0]).
nothing() -> py_event_loop:create_task('__main__', nothing, []).

%% Thousands of tasks per second, with so many outstanding.
rate(Count, Outstanding, Start) ->
    {Time, _} = timer:tc(fun() ->
        Queue = queue:from_list([Start() || _ <- lists:seq(1, Outstanding)]),
        collect(Count - Outstanding, Queue, Start)
    end),
    Count / Time * 1000.

collect(Left, Queue, Start) ->
    case queue:out(Queue) of
        {empty, _} -> ok;
        {{value, Ref}, Rest} ->
            receive {async_result, Ref, {ok, _}} -> ok end,
            case Left of
                0 -> collect(0, Rest, Start);
                _ -> collect(Left - 1, queue:in(Start(), Rest), Start)
            end
    end.

many(Processes, Count, Outstanding) ->
    Me = self(),
    {Time, _} = timer:tc(fun() ->
        [spawn_link(fun() -> rate(Count, Outstanding, fun sqrt/0), Me ! done end) || _ <- lists:seq(1, Processes)],
        [receive done -> ok end || _ <- lists:seq(1, Processes)]
    end),
    Processes * Count / Time * 1000.

latency(Count) ->
    median([element(1, timer:tc(fun() -> {ok, _} = py_event_loop:await(sqrt()) end)) || _ <- lists:seq(1, Count)]).

call_latency(Count) ->
    median([element(1, timer:tc(fun() -> {ok, _} = py:call(math, sqrt, [2.0]) end)) || _ <- lists:seq(1, Count)]).

median(Times) -> float(lists:nth(length(Times) div 2, lists:sort(Times))).

%% 10,000 processes, each with a namespace and a task in it.
namespaces() ->
    Me = self(),
    {Time, _} = timer:tc(fun() ->
        Pids = [spawn_link(fun() ->
            ok = py_event_loop:exec(<<"x = 1">>),
            {ok, 1} = py_event_loop:eval(<<"x">>),
            Me ! {ready, self()},
            receive stop -> ok end
        end) || _ <- lists:seq(1, 10000)],
        [receive {ready, Pid} -> ok end || Pid <- Pids],
        [Pid ! stop || Pid <- Pids]
    end),
    io:format("10,000 processes with a namespace each: defined and read in ~.2f s~n", [Time / 1.0e6]).

%% Time in the native function that schedulers call.
times() ->
    Print = fun(What) ->
        Times = py_nif:nif_times(),
        Total = lists:sum([Count || {_, Count} <- Times]),
        io:format("native function, ~s: p50 <= ~p ns, p99 <= ~p ns, p99.9 <= ~p ns, most ~p ns (~p calls)~n",
                  [What, below(Times, Total * 0.5), below(Times, Total * 0.99), below(Times, Total * 0.999),
                   element(1, lists:last(Times)), Total])
    end,
    py_nif:nif_measure(true),
    rate(100000, 1000, fun sqrt/0),
    Print("small arguments"),
    Megabyte = binary:copy(<<"x">>, 1 bsl 20),
    List = lists:seq(1, 100000),
    py_nif:nif_measure(true),
    [begin
         {ok, _} = py_event_loop:await(py_event_loop:create_task(builtins, len, [Argument]), 60000)
     end || _ <- lists:seq(1, 500), Argument <- [Megabyte, List]],
    Print("1 MB binaries and lists of 100,000"),
    py_nif:nif_measure(false).

below([{_, Count} | Rest], Wanted) when Wanted > Count, Rest =/= [] -> below(Rest, Wanted - Count);
below([{Bound, _} | _], _) -> Bound.
