%% @doc Bounded queues between Erlang and Python. A channel is a process; it closes when its owner ends.
%%
%% The bound is in bytes, of the terms in the external format. Sending never waits: a full channel is `busy'.
-module(py_channel).
-behaviour(gen_server).
-export([new/0, new/1, send/2, recv/1, recv/2, try_receive/1, put_back/2, close/1, info/1, functions/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

%% One megabyte.
-define(MAX_SIZE, 1048576).

-record(state, {items = queue:new(), size = 0, max_size, waiting = queue:new(), closed = false, owner}).

new() -> new(#{}).

%% @doc Options: max_size, in bytes.
new(Options) when is_map(Options) ->
    gen_server:start(?MODULE, {self(), maps:get(max_size, Options, ?MAX_SIZE)}, []).

%% @doc Returns ok, busy if the channel is full, or {error, closed}.
send(Channel, Term) -> ask(Channel, {send, Term, erlang:external_size(Term)}, infinity).

%% @doc Waits for an item. Returns {ok, Item}, {error, closed} or {error, timeout}.
recv(Channel) -> recv(Channel, infinity).
recv(Channel, Timeout) -> ask(Channel, {recv, Timeout}, infinity).

%% @doc Returns {ok, Item}, {error, empty} or {error, closed}.
try_receive(Channel) ->
    case recv(Channel, 0) of
        {error, timeout} -> {error, empty};
        Answer -> Answer
    end.

%% @private Gives an item back whose receiver was gone.
put_back(Channel, Item) -> gen_server:cast(Channel, {put_back, Item}).

%% @doc Refuses new items. Those in the channel can still be received.
close(Channel) ->
    ask(Channel, close, infinity),
    ok.

info(Channel) -> ask(Channel, info, infinity).

ask(Channel, Request, Timeout) ->
    try gen_server:call(Channel, Request, Timeout)
    catch
        exit:_ -> {error, closed}
    end.

%% What Python calls. An item whose receiver is gone goes back.
functions() ->
    [{<<"_py_channel_send">>, fun([Channel, Item]) ->
         case send(Channel, Item) of
             {error, closed} -> closed;
             Answer -> Answer
         end
     end},
     {<<"_py_channel_receive">>, fun([Channel, Seconds]) ->
         Timeout = case Seconds of none -> infinity; _ -> max(0, round(Seconds * 1000)) end,
         case recv(Channel, Timeout) of
             {ok, Item} -> {'$py_undo', {ok, Item}, fun() -> put_back(Channel, Item) end};
             {error, Reason} -> {error, Reason}
         end
     end},
     {<<"_py_channel_put_back">>, fun([Channel, Item]) -> put_back(Channel, Item) end},
     {<<"_py_channel_close">>, fun([Channel]) -> close(Channel) end}].

init({Owner, MaxSize}) ->
    {ok, #state{max_size = MaxSize, owner = erlang:monitor(process, Owner)}}.

handle_call({send, _, _}, _From, #state{closed = true} = State) ->
    {reply, {error, closed}, State};
handle_call({send, Item, Size}, _From, #state{items = Items, size = Used, max_size = Most} = State) ->
    %% One item larger than the bound is accepted if the channel is empty; otherwise it could never be sent.
    case Used > 0 andalso Used + Size > Most of
        true -> {reply, busy, State};
        false -> {reply, ok, hand_out(State#state{items = queue:in({Item, Size}, Items), size = Used + Size})}
    end;
handle_call({recv, Timeout}, From, #state{items = Items, waiting = Waiting, closed = Closed} = State) ->
    case queue:is_empty(Items) of
        true when Closed -> {stop, normal, {error, closed}, State};
        true when Timeout =:= 0 -> {reply, {error, timeout}, State};
        _ ->
            Timeout =:= infinity orelse erlang:send_after(Timeout, self(), {late, From}),
            {noreply, hand_out(State#state{waiting = queue:in(From, Waiting)})}
    end;
handle_call(close, _From, State) ->
    closed(State#state{closed = true}, reply);
handle_call(info, _From, #state{items = Items, size = Size, max_size = Most, closed = Closed} = State) ->
    {reply, #{size => Size, queue_size => queue:len(Items), max_size => Most, closed => Closed}, State}.

handle_cast({put_back, Item}, #state{items = Items, size = Used} = State) ->
    Size = erlang:external_size(Item),
    {noreply, hand_out(State#state{items = queue:in_r({Item, Size}, Items), size = Used + Size})}.

handle_info({late, From}, #state{waiting = Waiting} = State) ->
    case queue:member(From, Waiting) of
        true ->
            gen_server:reply(From, {error, timeout}),
            {noreply, State#state{waiting = queue:delete(From, Waiting)}};
        false ->
            {noreply, State}
    end;
handle_info({'DOWN', Owner, process, _, _}, #state{owner = Owner} = State) ->
    closed(State#state{closed = true}, noreply);
handle_info(_, State) ->
    {noreply, State}.

%% Receivers that wait get nothing any more. The process stays until its items were received.
closed(#state{waiting = Waiting} = State, How) ->
    [gen_server:reply(From, {error, closed}) || From <- queue:to_list(Waiting)],
    State1 = State#state{waiting = queue:new()},
    case How of
        reply -> {reply, ok, State1};
        noreply -> {noreply, State1}
    end.

hand_out(#state{items = Items, waiting = Waiting, size = Used} = State) ->
    case {queue:out(Items), queue:out(Waiting)} of
        {{{value, {Item, Size}}, Rest}, {{value, From}, Others}} ->
            gen_server:reply(From, {ok, Item}),
            hand_out(State#state{items = Rest, waiting = Others, size = Used - Size});
        _ ->
            State
    end.
