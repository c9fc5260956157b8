# frozen_string_literal: true

require 'digest/md5'
require 'openssl'

module EventMachine
  module Protocols
    # A client of PostgreSQL, in version 3 of its protocol, with simple queries.
    #
    #   db = EM.connect('localhost', 5432, EM::P::Postgres3)
    #   db.connect('database', 'user', 'password').callback do |status|
    #     db.query('select * from things').callback do |status, result, errors|
    #       result.rows.each { |row| p row } if status
    #     end
    #   end
    #
    # `status` is whether it worked. `result` has `rows`, arrays of strings and nil, `fields`, and `cmd_tag`. `errors` are
    # ServerErrors. Queries may be asked while others run; they are answered in order. When the connection ends, everything that
    # waits fails. It needs no other gem.
    class Postgres3 < Connection
      # The version of the protocol.
      VERSION = 3 << 16
      # The longest message that is accepted, in bytes.
      LONGEST_MESSAGE = 1 << 30

      Field = Struct.new(:name, :table_oid, :column, :type_oid, :size, :modifier, :format)
      Result = Struct.new(:fields, :rows, :cmd_tag)

      # An error or a notice of the server.
      class ServerError < StandardError
        # The fields, by PostgreSQL's letters: S severity, C code, M message, D detail, H hint.
        attr_reader :values

        def initialize(values)
          @values = values
          super("#{values['S']}: #{values['M']} (#{values['C']})")
        end
      end

      # The connection ended, or the server has sent something that is not a message.
      class Interrupted < StandardError
      end

      Request = Struct.new(:deferrable, :query, :result, :errors)
      private_constant :Request

      # The parameters that the server has reported.
      attr_reader :params

      def initialize(*)
        super
        @buffer = String.new
        @requests = []
        @params = {}
      end

      # Authenticates. Calls back with true, or with false and the errors.
      def connect(db, user, password = nil)
        @user = user.to_s
        @password = password&.to_s
        fields = ['user', @user, 'database', db.to_s]
        raise ArgumentError, 'names cannot contain zero bytes' if fields.any? { |field| field.include?("\0") }

        body = [VERSION].pack('N') << fields.map { |field| "#{field}\0" }.join << "\0"
        add(:connect) { send_data([body.bytesize + 4].pack('N') << body) }
      end

      # Executes a query. Calls back with true, the result and the notices, or with false, nil and the errors.
      def query(sql)
        sql = sql.to_s
        raise ArgumentError, 'a query cannot contain zero bytes' if sql.include?("\0")

        add(sql) { send_message('Q', "#{sql}\0") }
      end

      # Ends the session.
      def terminate
        send_message('X', '')
        close_connection_after_writing
      end

      def receive_data(data)
        @buffer << data
        while @buffer.bytesize >= 5
          type, length = @buffer.unpack('aN')
          return interrupt("a message of #{length} bytes") unless (4..LONGEST_MESSAGE).cover?(length)
          break if @buffer.bytesize < length + 1

          body = @buffer.slice!(0, length + 1).byteslice(5..)
          process(type, body)
        end
      end

      def unbind(reason = nil)
        error = Interrupted.new(reason ? "the connection ended: #{reason}" : 'the connection ended')
        waiting = @requests
        @requests = []
        waiting.each { |request| settle(request, false, [error]) }
      end

      private

      def add(query, &send)
        request = Request.new(EM::DefaultDeferrable.new, query, Result.new([], [], nil), [])
        @requests << request
        if error? == true
          @requests.delete(request)
          EM.next_tick { settle(request, false, [Interrupted.new('the connection ended')]) }
        else
          send.call
        end
        request.deferrable
      end

      def send_message(type, body)
        send_data([type, body.bytesize + 4].pack('aN') << body.b)
      end

      def process(type, body)
        request = @requests.first
        case type
        when 'R' then authenticate(body)
        when 'S' then @params.store(*body.split("\0", 3).first(2))
        when 'K', 'A' then nil
        when 'T' then request&.result&.fields = fields(body)
        when 'D' then request&.result&.rows&.push(row(body))
        when 'C' then request&.result&.cmd_tag = body.chomp("\0")
        when 'I' then request&.result&.cmd_tag = ''
        when 'E', 'N' then problem(type, body)
        when 'G' then send_message('f', "no data to copy\0")
        when 'H', 'd', 'c' then nil
        when 'Z' then ready
        else interrupt("a message of type #{type.inspect}")
        end
      end

      def problem(type, body)
        error = ServerError.new(body.split("\0").to_h { |field| [field[0].to_s, field[1..].to_s.force_encoding('UTF-8')] })
        request = @requests.first
        return unless request

        request.errors << error
        @failed = true if type == 'E'
        # After an error in the handshake the server closes the connection.
        ready if type == 'E' && request.query == :connect
      end

      def ready
        request = @requests.shift
        failed = @failed
        @failed = false
        settle(request, !failed, request.errors) if request
      end

      def settle(request, worked, errors)
        if request.query == :connect then request.deferrable.succeed(worked, errors)
        else request.deferrable.succeed(worked, worked ? request.result : nil, errors)
        end
      end

      def fields(body)
        body = body.dup
        Array.new(body.slice!(0, 2).unpack1('n')) do
          name = body.slice!(/\A[^\0]*\0/n).chomp("\0").force_encoding('UTF-8')
          Field.new(name, *body.slice!(0, 18).unpack('NnNs>l>n'))
        end
      end

      def row(body)
        count = body.unpack1('n')
        at = 2
        Array.new(count) do
          size = body.byteslice(at, 4).unpack1('l>')
          at += 4
          next if size.negative?

          at += size
          body.byteslice(at - size, size)
        end
      end

      def authenticate(body)
        kind, = body.unpack('N')
        rest = body.byteslice(4..)
        case kind
        when 0 then nil
        when 3 then send_message('p', "#{password}\0")
        when 5 then send_message('p', "md5#{md5(md5(password + @user) + rest)}\0")
        when 10 then begin_scram(rest.split("\0"))
        when 11 then continue_scram(rest)
        when 12 then finish_scram(rest)
        else interrupt("a way to authenticate that is not supported (#{kind})")
        end
      end

      def password
        @password || ''
      end

      def md5(text)
        Digest::MD5.hexdigest(text)
      end

      # SCRAM-SHA-256, RFC 5802.
      def begin_scram(mechanisms)
        return interrupt("ways to authenticate: #{mechanisms.join(', ')}") unless mechanisms.include?('SCRAM-SHA-256')

        @nonce = [OpenSSL::Random.random_bytes(18)].pack('m0')
        @bare = "n=,r=#{@nonce}"
        first = "n,,#{@bare}"
        send_message('p', "SCRAM-SHA-256\0#{[first.bytesize].pack('N')}#{first}")
      end

      def continue_scram(first)
        fields = first.split(',').to_h { |field| field.split('=', 2) }
        salt, nonce, iterations = fields['s'].to_s.unpack1('m'), fields['r'].to_s, fields['i'].to_i
        return interrupt('an answer of another session') unless nonce.start_with?(@nonce.to_s) && @nonce
        return interrupt("#{iterations} iterations") unless (1..1_000_000).cover?(iterations)

        salted = OpenSSL::PKCS5.pbkdf2_hmac(password, salt, iterations, 32, 'SHA256')
        client = hmac(salted, 'Client Key')
        last = "c=biws,r=#{nonce}"
        message = "#{@bare},#{first},#{last}"
        signature = hmac(OpenSSL::Digest::SHA256.digest(client), message)
        @server_signature = hmac(hmac(salted, 'Server Key'), message)
        proof = client.bytes.zip(signature.bytes).map { |one, other| one ^ other }.pack('C*')
        send_message('p', "#{last},p=#{[proof].pack('m0')}")
      end

      # The server has to know the password too.
      def finish_scram(last)
        return if @server_signature && last == "v=#{[@server_signature].pack('m0')}"

        interrupt('a server that does not know the password')
      end

      def hmac(key, text)
        OpenSSL::HMAC.digest('SHA256', key, text)
      end

      # Gives up after something that cannot be understood.
      def interrupt(what)
        error = Interrupted.new("the server has sent #{what}")
        @buffer.clear
        waiting = @requests
        @requests = []
        close_connection
        waiting.each { |request| settle(request, false, [error]) }
      end
    end
  end
end
