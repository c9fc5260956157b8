%% @doc Limits how many calls run at the same time.
-module(py_semaphore).
-export([new/1, acquire/1, acquire/2, release/1, with/2, current/1]).

-record(semaphore, {counter :: counters:counters_ref() | atomics:atomics_ref(), most :: pos_integer()}).

%% @doc Creates a semaphore for so many holders.
new(Most) when is_integer(Most), Most > 0 ->
    #semaphore{counter = atomics:new(1, []), most = Most}.

%% @doc Acquires it, or returns {error, busy}.
acquire(#semaphore{counter = Counter, most = Most}) ->
    case atomics:add_get(Counter, 1, 1) of
        Now when Now =< Most -> ok;
        _ ->
            atomics:sub(Counter, 1, 1),
            {error, busy}
    end.

%% @doc Tries for so many milliseconds.
acquire(Semaphore, Timeout) ->
    Deadline = erlang:monotonic_time(millisecond) + Timeout,
    acquire_until(Semaphore, Deadline, 1).

acquire_until(Semaphore, Deadline, Pause) ->
    case acquire(Semaphore) of
        ok -> ok;
        Busy ->
            case erlang:monotonic_time(millisecond) of
                Now when Now >= Deadline -> Busy;
                Now ->
                    timer:sleep(min(Pause, max(Deadline - Now, 1))),
                    acquire_until(Semaphore, Deadline, min(Pause * 2, 20))
            end
    end.

release(#semaphore{counter = Counter}) ->
    atomics:sub(Counter, 1, 1),
    ok.

%% @doc Runs a function while holding it.
with(Semaphore, Function) ->
    case acquire(Semaphore) of
        ok ->
            try {ok, Function()} after release(Semaphore) end;
        Busy ->
            Busy
    end.

current(#semaphore{counter = Counter}) -> atomics:get(Counter, 1).
