# frozen_string_literal: true

module EventMachine
  class << self
    # Accepts TCP connections, or connections on a Unix socket if the second argument is not a number. Returns the server's
    # signature.
    ruby2_keywords def start_server(server, port = nil, handler = nil, *args, &block)
      on_reactor_thread do
        begin
          port = Integer(port)
        rescue ArgumentError, TypeError
          # Not a port: the first argument is a path, and the others move up.
          args.unshift(handler) if handler
          handler = port
          port = nil
        end
        klass = klass_from_handler(Connection, handler, *args)
        signature = port ? start_tcp_server(server.to_s, port) : start_unix_server(server.to_s)
        @acceptors[signature] = [klass, args, block]
        signature
      end
    end

    # Accepts connections on a listening socket of the program, which stays the program's.
    ruby2_keywords def attach_server(socket, handler = nil, *args, &block)
      on_reactor_thread do
        klass = klass_from_handler(Connection, handler, *args)
        signature = attach_sd(socket.respond_to?(:fileno) ? socket.fileno : socket)
        @acceptors[signature] = [klass, args, block, socket]
        signature
      end
    end
    alias attach_socket_server attach_server

    def stop_server(signature)
      stop_tcp_server(signature)
      @acceptors.delete(signature)
    end

    ruby2_keywords def start_unix_domain_server(path, *args, &block)
      start_server(path, *args, &block)
    end

    ruby2_keywords def connect(server, port = nil, handler = nil, *args, &block)
      bind_connect(nil, nil, server, port, handler, *args, &block)
    end

    # Connects from a local address.
    ruby2_keywords def bind_connect(bind_addr, bind_port, server, port = nil, handler = nil, *args, &block)
      on_reactor_thread do
        begin
          port = Integer(port)
        rescue ArgumentError, TypeError
          args.unshift(handler) if handler
          handler = port
          port = nil
        end
        klass = klass_from_handler(Connection, handler, *args)
        signature =
          if port.nil? then connect_unix_server(server.to_s)
          elsif bind_addr then bind_connect_server(bind_addr.to_s, bind_port && Integer(bind_port), server.to_s, port)
          else connect_server(server.to_s, port)
          end
        connection = klass.new(signature, *args)
        @conns[signature] = connection
        block&.call(connection)
        connection
      end
    end

    ruby2_keywords def connect_unix_domain(path, *args, &block)
      connect(path, *args, &block)
    end

    # Sends what one connection receives on another one, without calling Ruby. While more than `bufsize` bytes are queued there, the
    # first is not read from; 0 is no limit. After `length` bytes, 0 being no end, the first gets `proxy_completed`.
    def enable_proxy(from, to, bufsize = 0, length = 0)
      start_proxy(from.signature, to.signature, bufsize, length)
    end

    def disable_proxy(from)
      stop_proxy(from.signature)
    end

    # Connects again, with the same object.
    def reconnect(server, port, handler, &block)
      on_reactor_thread do
        signature = connect_server(server.to_s, Integer(port))
        handler.signature = signature
        @conns[signature] = handler
        block&.call(handler)
        handler.post_init
        handler
      end
    end

    ruby2_keywords def open_datagram_socket(address, port, handler = nil, *args, &block)
      on_reactor_thread do
        klass = klass_from_handler(Connection, handler, *args)
        signature = open_udp_socket(address.to_s, Integer(port))
        connection = klass.new(signature, *args)
        @conns[signature] = connection
        block&.call(connection)
        connection
      end
    end
  end
end
