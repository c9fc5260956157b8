%% Shared by the suites.
-module(test_support).
-export([until/1, until/2, peer/1, stop_peer/1]).

%% Waits until a condition holds, with a deadline.
until(Condition) -> until(Condition, 60000).

until(Condition, Left) when Left > 0 ->
    case Condition() of
        true -> ok;
        false -> timer:sleep(10), until(Condition, Left - 10)
    end;
until(_, _) ->
    error(not_in_time).

%% Starts another virtual machine with the application's code. It is told what to do through its standard input and output.
peer(Code) ->
    Paths = lists:append([["-pa", Path] || Path <- [filename:dirname(code:which(py_nif)), filename:dirname(code:which(?MODULE))]]),
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    open_port({spawn_executable, Erl},
              [{args, ["-noshell", "-noinput"] ++ Paths ++ ["-eval", Code]}, exit_status, stderr_to_stdout, binary]).

%% Waits for its end. Returns its exit status and what it wrote.
stop_peer(Port) -> stop_peer(Port, <<>>).

stop_peer(Port, Output) ->
    receive
        {Port, {data, Data}} -> stop_peer(Port, <<Output/binary, Data/binary>>);
        {Port, {exit_status, Status}} -> {Status, Output}
    after 120000 -> error({hangs, Output})
    end.
