# frozen_string_literal: true

module EventMachine
  module Protocols
    # A client of memcached, in its text protocol.
    #
    #   cache = EM::P::Memcache.connect('localhost', 11211)
    #   cache.set(:a, 'hello') { puts 'stored' }
    #   cache.get(:a) { |value| p value }
    #   cache.get(:a, :b) { |a, b| p a, b }
    #   cache.get_hash(:a, :b) { |values| p values }
    #   cache.delete(:a) { puts 'gone' }
    #
    # Commands are pipelined. When the connection is lost, it connects again, and sends the commands again that were not answered.
    module Memcache
      include EM::Deferrable

      # The server has sent something that is not an answer.
      class ParserError < StandardError
      end

      # How long to wait before connecting again, in seconds.
      RECONNECT_DELAY = 1

      # The longest key, in bytes, as memcached has it.
      LONGEST_KEY = 250

      # A command, what to call with its answer, and the values of the answer so far.
      Request = Struct.new(:command, :kind, :keys, :callback, :values)
      private_constant :Request

      # Connects.
      def self.connect(host = 'localhost', port = 11_211)
        EM.connect(host, port, self, host, port)
      end

      def initialize(host, port = 11_211)
        @host = host
        @port = port
        @requests = []
        @buffer = String.new
        @value = nil
        @connected = false
      end

      # Calls back with the value of each key, nil for those that do not exist.
      def get(*keys, &callback)
        raise ArgumentError, 'get needs keys and a block' if keys.empty? || callback.nil?

        keys = keys.map { |key| clean_key(key) }
        request("get #{keys.join(' ')}\r\n", :get, keys) { |values| callback.call(*values.values_at(*keys)) }
      end

      # Calls back with a hash from the keys, as they were given, to their values. Missing ones are not in it.
      def get_hash(*keys, &callback)
        raise ArgumentError, 'get_hash needs keys and a block' if keys.empty? || callback.nil?

        names = keys.to_h { |key| [key, clean_key(key)] }
        request("get #{names.values.join(' ')}\r\n", :get, names.values) do |values|
          callback.call(names.transform_values { |name| values[name] }.compact)
        end
      end

      # Stores a value, for `exptime` seconds or for ever. Calls back when that is done.
      def set(key, value, exptime = 0, &callback)
        value = value.to_s.b
        command = "set #{clean_key(key)} 0 #{Integer(exptime)} #{value.bytesize}\r\n".b << value << "\r\n"
        request(command, :set, nil, &callback)
      end

      # Deletes a value. Calls back when it is gone, or did not exist.
      def delete(key, _expires = 0, &callback)
        request("delete #{clean_key(key)}\r\n", :delete, nil, &callback)
      end
      alias del delete

      def connection_completed
        @connected = true
        @buffer = String.new
        @value = nil
        # What was sent before the connection existed is in its queue. After a reconnection, it is not.
        @requests.each { |request| send_data(request.command) } if @reconnecting
        @reconnecting = false
        succeed
      end

      def receive_data(data)
        @buffer << data
        nil while step
      end

      def unbind(_reason = nil)
        if @connected || @reconnecting
          @connected = false
          @reconnecting = true
          @requests.each { |request| request.values = {} }
          EM.add_timer(RECONNECT_DELAY) { reconnect(@host, @port) } if EM.reactor_running? && !EM.stopping?
        else
          raise "Unable to connect to memcached server at #{@host}:#{@port}"
        end
      end

      private

      # A key cannot contain what separates keys.
      def clean_key(key)
        key = key.to_s.b.gsub(/[\x00-\x20\x7f]/n, '_')
        raise ArgumentError, "a key has 1 to #{LONGEST_KEY} bytes, not #{key.bytesize}" unless (1..LONGEST_KEY).cover?(key.bytesize)

        key
      end

      def request(command, kind, keys, &callback)
        @requests << Request.new(command, kind, keys, callback, {})
        send_data(command) unless @reconnecting
        nil
      end

      # Processes a line or a value. Returns whether there was one.
      def step
        if @value
          key, size = @value
          return false if @buffer.bytesize < size + 2

          data = @buffer.slice!(0, size + 2)
          raise ParserError, 'a value does not end where it should' unless data.end_with?("\r\n")

          @requests.first.values[key] = data.byteslice(0, size)
          @value = nil
          return true
        end
        line = @buffer.slice!(/\A[^\r\n]*\r?\n/n)
        return !line.nil? && process_line(line.chomp)
      end

      def process_line(line)
        waiting = @requests.first
        raise ParserError, "unasked: #{line.inspect}" unless waiting

        case line
        when /\AVALUE (\S+) \d+ (\d+)/n then @value = [Regexp.last_match(1), Integer(Regexp.last_match(2), 10)]
        when 'END' then finish(:get, waiting.values)
        when 'STORED', 'NOT_STORED', 'EXISTS' then finish(:set)
        when 'DELETED', 'NOT_FOUND' then finish(:delete)
        when /\A(SERVER_ERROR|CLIENT_ERROR|ERROR)/n then raise ParserError, line
        else raise ParserError, "not an answer: #{line.inspect}"
        end
        true
      end

      def finish(kind, *arguments)
        request = @requests.shift
        raise ParserError, "the answer to #{kind} came for #{request.kind}" unless request.kind == kind

        request.callback&.call(*arguments)
      end
    end
  end
end
